"""A real browser without a window, for tests of pages; `browser` in conftest.py is the fixture."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_DRIVERS = ("chromedriver", "chromium.chromedriver")
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars"
).split()
WIDE, NARROW = 1400, 400  # pixels


class Browser:
    """Chromium, driven by selenium; every page is a file."""

    def __init__(self, profile: Path) -> None:
        """Starts it with the empty folder `profile` as its memory; skips the test where there is none."""
        program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
        driver = next(filter(None, map(shutil.which, _DRIVERS)), None)
        if program is None or driver is None:
            pytest.skip("no chromium with its driver here (Debian, Ubuntu: apt-get install chromium chromium-driver)")
        webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium here (pip install selenium)")
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        # With its driver named, selenium doesn't look for one in the network.
        service = webdriver.ChromeService(executable_path=driver)
        self.driver: Any = webdriver.Chrome(options=options, service=service)

    def open(self, page: Path, *, width: int = WIDE, dark: bool = False, script: bool = True) -> None:
        """Opens a page anew, nothing stored, as wide as that, for a reader who prefers that theme.

        Args:
            script: whether the page's scripts run.
        """
        self.driver.get("about:blank")
        self.resize(width)
        self.prefer(dark=dark)
        self.cdp("Emulation.setScriptExecutionDisabled", value=not script)
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(page.absolute().as_uri())
        if script:
            self.run("localStorage.clear()")
            self.driver.refresh()

    def close(self) -> None:
        self.driver.quit()

    def cdp(self, command: str, **parameters: Any) -> dict[str, Any]:
        """A command of the DevTools protocol."""
        answer: dict[str, Any] = self.driver.execute_cdp_cmd(command, parameters)
        return answer

    def resize(self, width: int, height: int = 1000) -> None:
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, *, dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.cdp("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, script: str, *arguments: Any) -> Any:
        """What a piece of JavaScript returns."""
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[Any]:
        """The elements that a CSS selector names."""
        found: list[Any] = self.driver.find_elements("css selector", selector)
        return found

    def one(self, selector: str) -> Any:
        """The first of them."""
        return self.driver.find_element("css selector", selector)

    def shown(self, selector: str) -> list[str]:
        """The texts of those that can be seen."""
        return [each.text for each in self.all(selector) if each.is_displayed()]

    def overflows(self) -> bool:
        """Whether the page as a whole is wider than the window."""
        return bool(self.run("return document.documentElement.scrollWidth > document.documentElement.clientWidth"))

    def opens_in_silence(self, page: Path, *, unfolded: bool = False) -> None:
        """In both themes and widths: nothing overflows, complains, is asked for, or has no name."""
        for width in (WIDE, NARROW):
            for dark in (False, True):
                self.open(page, width=width, dark=dark)
                if unfolded:
                    self.run("for (const each of document.querySelectorAll('details')) each.open = true")
                assert not self.overflows()
                assert [*self.complaints(), *self.requests(), *self.unnamed()] == []

    def complaints(self) -> list[str]:
        """What the browser's console has said since the page was opened (or since this was asked)."""
        return [f"{entry['level']}: {entry['message']}" for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses that were asked for since then, but for the page itself."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [each["params"] for each in messages if each["method"] == "Network.requestWillBeSent"]
        urls = [each["request"]["url"] for each in sent if each.get("type") != "Document"]
        return [*urls, *(url for each in sent if not (url := each["request"]["url"]).startswith(("file:", "data:")))]

    def unnamed(self) -> list[str]:
        """Buttons, links and fields without a name that a screen reader could say."""
        tree = self.cdp("Accessibility.getFullAXTree")["nodes"]
        roles = {"button", "link", "checkbox", "searchbox", "textbox", "switch", "region", "img", "DisclosureTriangle"}
        return [
            str(node["role"]["value"])
            for node in tree
            if node.get("role", {}).get("value") in roles and not node.get("name", {}).get("value", "").strip()
        ]
