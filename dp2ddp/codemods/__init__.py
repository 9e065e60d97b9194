"""dp2ddp as libcst's own tool runs it: ``modules: [dp2ddp.codemods]`` in `.libcst.codemod.yaml`."""
