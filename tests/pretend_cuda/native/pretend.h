// What the native files of the pretend CUDA know of each other.
#pragma once
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <memory>
#include <utility>
#include <vector>

namespace pretend {

c10::DeviceIndex device_count();
c10::DeviceIndex current_device();
// `cuda` without a number is the current device. Raises what CUDA raises where there is no such device.
c10::Device numbered(c10::Device device);
c10::Allocator* device_allocator();
// The CPU's generator that the generator of a device draws from; of the device's own where none is given.
at::Generator host_generator(const std::optional<at::Generator>& generator, c10::DeviceIndex index);
// Tells Python of bytes that went from one device to another; the host is -1.
void note_copy(c10::Device from, c10::Device to, int64_t bytes);

// The tensors of one call, each with its twin: a CPU tensor on the same memory.
class Twins {
 public:
  c10::IValue lend(const c10::IValue& value);                       // with twins for device tensors
  c10::IValue take(const c10::IValue& value, c10::Device device);   // with device tensors for twins and new tensors
  void settle();  // what the call did to twins' shapes and storages happens to the device tensors too

 private:
  at::Tensor twin(const at::Tensor& tensor);
  c10::Storage twin(const c10::Storage& storage);
  at::Tensor taken(const at::Tensor& tensor, c10::Device device);
  c10::Storage taken(const c10::Storage& storage, c10::Device device);

  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;
  std::vector<at::Tensor> hosts_;  // the caller's own CPU tensors
};

// Process groups: the group that does on the CPU what `group` does on a device, and its `Work` told in device tensors.
bool is_group(const c10::IValue& value);
c10::IValue host_group(const c10::IValue& group);
bool is_work(const c10::IValue& value);
c10::IValue device_work(const c10::IValue& work, std::shared_ptr<Twins> twins, c10::Device device);

// Put what each file has where torch looks for it.
void install_guard();
void install_timer();

}  // namespace pretend
