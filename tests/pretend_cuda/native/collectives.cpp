// Process groups of pretend devices: what one does with device tensors, its backend does with their twins.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <map>
#include <mutex>

#include "pretend.h"

namespace pretend {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

class DeviceWork final : public c10d::Work {
 public:
  DeviceWork(c10::intrusive_ptr<c10d::Work> host, std::shared_ptr<Twins> twins, c10::Device device)
      : host_(std::move(host)), twins_(std::move(twins)), device_(device) {}
  bool isCompleted() override { return host_->isCompleted(); }
  bool isSuccess() const override { return host_->isSuccess(); }
  std::exception_ptr exception() const override { return host_->exception(); }
  int sourceRank() const override { return host_->sourceRank(); }
  std::vector<at::Tensor> result() override { return twins_->take(host_->result(), device_).toTensorVector(); }
  void synchronize() override { host_->synchronize(); }
  bool wait(std::chrono::milliseconds timeout) override { return host_->wait(timeout); }
  void abort() override { host_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto host = host_->getFuture();
    auto made = c10::make_intrusive<c10::ivalue::Future>(host->elementType(), std::vector<c10::Device>{device_});
    host->addCallback([made, twins = twins_, device = device_](c10::ivalue::Future& done) {
      if (done.hasError()) {
        made->setError(done.exception_ptr());
      } else {
        made->markCompleted(twins->take(done.value(), device));
      }
    });
    return made;
  }

 private:
  c10::intrusive_ptr<c10d::Work> host_;
  std::shared_ptr<Twins> twins_;
  c10::Device device_;
};

// DistributedDataParallel times its first steps, by events of CUDA's where these are.
class HostTimer final : public c10d::Timer {
 public:
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto from = getTimestamp(start), to = getTimestamp(end);
    return from && to ? std::optional<int64_t>(*to - *from) : std::nullopt;
  }
};

}  // namespace

void install_timer() {
  c10d::TimerRegistry()->Register(
      c10::kCUDA, [](c10::Device) -> std::unique_ptr<c10d::Timer> { return std::make_unique<HostTimer>(); },
      c10::REGISTRY_PREFERRED);
}

bool is_group(const c10::IValue& value) {
  return value.isObject() && value.type()->isSubtypeOf(*c10::getCustomClassType<Group>());
}

bool is_work(const c10::IValue& value) {
  return value.isObject() && value.type()->isSubtypeOf(*c10::getCustomClassType<c10::intrusive_ptr<c10d::Work>>());
}

c10::IValue host_group(const c10::IValue& value) {
  static auto* mutex = new std::mutex();
  static auto* made = new std::map<c10d::ProcessGroup*, std::pair<c10::weak_intrusive_ptr<c10d::ProcessGroup>, Group>>();
  const Group group = value.toCustomClass<c10d::ProcessGroup>();
  const std::lock_guard<std::mutex> lock(*mutex);
  auto found = made->find(group.get());
  if (found == made->end() || found->second.first.expired()) {
    const auto backend = group->getBackend(c10::kCUDA);
    auto host = c10::make_intrusive<c10d::ProcessGroup>(group->getRank(), group->getSize());
    host->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::GLOO, backend);
    host->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
    found = made->insert_or_assign(group.get(), std::make_pair(c10::weak_intrusive_ptr<c10d::ProcessGroup>(group), host)).first;
  }
  return found->second.second;
}

c10::IValue device_work(const c10::IValue& work, std::shared_ptr<Twins> twins, c10::Device device) {
  c10::intrusive_ptr<c10d::Work> made =
      c10::make_intrusive<DeviceWork>(work.toCustomClass<c10d::Work>(), std::move(twins), device);
  return made;
}

}  // namespace pretend
