// Devices that need no driver: a current one for each thread, one stream and one generator for each, and their memory.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>

#include "pretend.h"

namespace pretend {
namespace {

thread_local c10::DeviceIndex current = 0;
c10::DeviceIndex count = 0;
long cudnn = 0;
void (*on_copy)(int, int, int64_t) = nullptr;

// Draws from a CPU generator, of which each device and each `torch.Generator("cuda")` has its own.
struct DeviceGenerator final : c10::GeneratorImpl {
  DeviceGenerator(c10::DeviceIndex index, at::Generator host)
      : GeneratorImpl({c10::kCUDA, index}, c10::DispatchKeySet(c10::DispatchKey::CUDA)), host(std::move(host)) {}
  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_offset(uint64_t) override { TORCH_CHECK_NOT_IMPLEMENTED(false, "pretend CUDA: generators have no offset"); }
  uint64_t get_offset() const override { TORCH_CHECK_NOT_IMPLEMENTED(false, "pretend CUDA: generators have no offset"); }
  void set_state(const c10::TensorImpl& state) override { host.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return host.unsafeGetGeneratorImpl()->get_state(); }
  DeviceGenerator* clone_impl() const override { return new DeviceGenerator(device_.index(), host.clone()); }
  at::Generator host;
};

// The first generator that is made for a device is its default one.
std::map<c10::DeviceIndex, at::Generator>& defaults() {
  static std::map<c10::DeviceIndex, at::Generator> made;
  return made;
}

struct DeviceAllocator : c10::Allocator {
  explicit DeviceAllocator(bool pinned) : pinned(pinned) {}
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr host = c10::GetAllocator(c10::kCPU)->allocate(bytes);
    if (!pinned) {
      host.unsafe_set_device({c10::kCUDA, current});
      return host;
    }
    if (bytes == 0) {
      return host;
    }
    auto* data = static_cast<char*>(host.get());
    {
      const std::lock_guard<std::mutex> lock(mutex());
      ranges()[data] = data + bytes;
    }
    return {data, new c10::DataPtr(std::move(host)), &unpin, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  static bool is_pinned(const void* data) {
    const std::lock_guard<std::mutex> lock(mutex());
    auto after = ranges().upper_bound(static_cast<char*>(const_cast<void*>(data)));
    return after != ranges().begin() && data < std::prev(after)->second;
  }

 private:
  static std::map<char*, char*>& ranges() {
    static auto* made = new std::map<char*, char*>();
    return *made;
  }
  static std::mutex& mutex() {
    static auto* made = new std::mutex();
    return *made;
  }
  static void unpin(void* held) {
    auto* host = static_cast<c10::DataPtr*>(held);
    {
      const std::lock_guard<std::mutex> lock(mutex());
      ranges().erase(static_cast<char*>(host->get()));
    }
    delete host;
  }
  bool pinned;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device getDevice() const override { return {c10::kCUDA, current}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(c10::Device device) const override {
    if (device.index() >= 0) {
      current = numbered(device).index();
    }
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) {
      current = device.index();
    }
  }
  // Each device has one stream: what is asked of a device has been done when the call returns.
  static c10::Stream only_stream(c10::Device device) { return c10::Stream(c10::Stream::DEFAULT, numbered(device)); }
  c10::Stream getStream(c10::Device device) const override { return only_stream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return only_stream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return only_stream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return only_stream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return only_stream(stream.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return count; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  double elapsedTime(void*, void*, const c10::DeviceIndex) const override { return 0.0; }
};

// Compiled without cuDNN and MAGMA: torch then takes the ways that the CPU has kernels for.
struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool hasCUDA() const override { return count > 0; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return count > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return count; }
  int getNumGPUs() const override { return count; }
  c10::DeviceIndex current_device() const override { return current; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex index) const override { Guard().setDevice({c10::kCUDA, index}); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return Guard().exchangeDevice({c10::kCUDA, index}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  void deviceSynchronize(c10::DeviceIndex) const override {}
  // Asked for also where cuDNN isn't used in the end.
  long versionCuDNN() const override { return cudnn; }
  long versionRuntimeCuDNN() const override { return cudnn; }
  bool isPinnedPtr(const void* data) const override { return DeviceAllocator::is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override {
    static auto* pinned = new DeviceAllocator(true);
    return pinned;
  }
  at::Allocator* getCUDADeviceAllocator() const override { return device_allocator(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return defaults().at(numbered({c10::kCUDA, index}).index());
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    const auto number = numbered({c10::kCUDA, index}).index();
    auto made = at::make_generator<DeviceGenerator>(number, at::make_generator<at::CPUGeneratorImpl>());
    defaults().try_emplace(number, made);
    return made;
  }
};

}  // namespace

c10::DeviceIndex device_count() { return count; }
c10::DeviceIndex current_device() { return current; }

c10::Device numbered(c10::Device device) {
  const auto index = device.index() < 0 ? current : device.index();
  TORCH_CHECK(index < count, "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?");
  return {c10::kCUDA, index};
}

c10::Allocator* device_allocator() {
  static auto* made = new DeviceAllocator(false);
  return made;
}

at::Generator host_generator(const std::optional<at::Generator>& generator, c10::DeviceIndex index) {
  if (!generator.has_value() || !generator->defined()) {
    return static_cast<DeviceGenerator*>(defaults().at(index).unsafeGetGeneratorImpl())->host;
  }
  TORCH_CHECK(
      generator->device().is_cuda(), "Expected a 'cuda' device type for generator but found '", generator->device().type(), "'");
  return static_cast<DeviceGenerator*>(generator->unsafeGetGeneratorImpl())->host;
}

void note_copy(c10::Device from, c10::Device to, int64_t bytes) {
  if (on_copy != nullptr) {
    on_copy(from.is_cpu() ? -1 : from.index(), to.is_cpu() ? -1 : to.index(), bytes);
  }
}

void install_guard() {
  static const c10::impl::DeviceGuardImplRegistrar registrar(c10::kCUDA, new Guard());
  c10::SetAllocator(c10::kCUDA, device_allocator(), /*priority=*/255);
  // torch has made its hooks already, and keeps a reference to them: that object gets our functions.
  static Hooks ours;
  auto& theirs = const_cast<at::CUDAHooksInterface&>(at::detail::getCUDAHooks());
  *reinterpret_cast<void**>(&theirs) = *reinterpret_cast<void**>(&ours);
}

}  // namespace pretend

extern "C" {
int pretend_device() { return pretend::current; }
void pretend_set_device(int index) { pretend::current = static_cast<c10::DeviceIndex>(index); }
void pretend_set_count(int devices) { pretend::count = static_cast<c10::DeviceIndex>(devices); }
void pretend_set_cudnn(long version) { pretend::cudnn = version; }
void pretend_on_copy(void (*tell)(int, int, int64_t)) { pretend::on_copy = tell; }
}
