// Tensors of a pretend device, lent to the CPU's kernels: twins on the same memory.
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/ivalue.h>

#include "pretend.h"

namespace pretend {
namespace {

void let_go(void* storage) {
  delete static_cast<c10::Storage*>(storage);
}

bool is_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().is_cuda();
}

at::SparseTensorImpl* sparse(const at::Tensor& tensor) {
  return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

at::Tensor sparse_like(const at::Tensor& tensor, c10::DispatchKey key, const at::Tensor& indices, const at::Tensor& values) {
  at::Tensor made = at::detail::make_tensor<at::SparseTensorImpl>(c10::DispatchKeySet(key), tensor.dtype());
  sparse(made)->resize_(sparse(tensor)->sparse_dim(), sparse(tensor)->dense_dim(), tensor.sizes());
  sparse(made)->set_indices_and_values_unsafe(indices, values);
  sparse(made)->set_coalesced(sparse(tensor)->coalesced());
  return made;
}

template <class Each>
c10::IValue each_tensor(const c10::IValue& value, const Each& each) {
  if (value.isTensor()) {
    return each(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> made;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      made.push_back(each(tensor));
    }
    return made;
  }
  if (value.isList()) {
    const auto list = value.toList();
    const auto kind = list.elementType()->kind();
    if (kind != c10::TypeKind::OptionalType && kind != c10::TypeKind::ListType && kind != c10::TypeKind::TensorType) {
      return value;
    }
    c10::impl::GenericList made(list.elementType());
    for (const c10::IValue& element : list) {
      made.push_back(each_tensor(element, each));
    }
    return made;
  }
  return value;
}

}  // namespace

c10::IValue Twins::lend(const c10::IValue& value) {
  if (value.isStorage()) {
    const c10::Storage storage = value.toStorage();
    return storage.device().is_cuda() ? c10::IValue(twin(storage)) : value;
  }
  return each_tensor(value, [this](const at::Tensor& tensor) {
    if (is_device(tensor)) {
      return twin(tensor);
    }
    if (tensor.defined()) {
      hosts_.push_back(tensor);
    }
    return tensor;
  });
}

c10::IValue Twins::take(const c10::IValue& value, c10::Device device) {
  return each_tensor(value, [this, device](const at::Tensor& tensor) { return taken(tensor, device); });
}

at::Tensor Twins::twin(const at::Tensor& tensor) {
  for (const auto& [ours, lent] : tensors_) {
    if (ours.is_same(tensor)) {
      return lent;
    }
  }
  if (tensor.is_sparse()) {
    const at::Tensor indices = twin(sparse(tensor)->indices()), values = twin(sparse(tensor)->values());
    at::Tensor made = sparse_like(tensor, c10::DispatchKey::SparseCPU, indices, values);
    tensors_.emplace_back(tensor, made);
    return made;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_quantized(),
      "pretend CUDA: dense and sparse COO tensors can be on its devices, not this one of ", tensor.layout());
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      twin(tensor.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    impl->set_wrapped_number(true);
  }
  if (tensor.is_conj()) {
    made._set_conj(true);
  }
  if (tensor.is_neg()) {
    made._set_neg(true);
  }
  tensors_.emplace_back(tensor, made);
  return made;
}

c10::Storage Twins::twin(const c10::Storage& storage) {
  for (const auto& [ours, lent] : storages_) {
    if (ours.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) {
      return lent;
    }
  }
  // The twin keeps the memory alive: an asynchronous collective may need it for longer than the call.
  void* data = storage.unsafeGetStorageImpl()->mutable_data();
  c10::Storage made(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
      c10::DataPtr(data, new c10::Storage(storage), &let_go, c10::Device(c10::kCPU)), c10::GetAllocator(c10::kCPU),
      /*resizable=*/true));
  storages_.emplace_back(storage, made);
  return made;
}

at::Tensor Twins::taken(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined() || !tensor.device().is_cpu()) {
    return tensor;
  }
  for (const auto& [ours, lent] : tensors_) {
    if (lent.is_same(tensor)) {
      return ours;
    }
  }
  for (const at::Tensor& host : hosts_) {
    if (host.is_same(tensor)) {
      return tensor;
    }
  }
  if (tensor.is_sparse()) {
    const at::Tensor indices = taken(sparse(tensor)->indices(), device), values = taken(sparse(tensor)->values(), device);
    return sparse_like(tensor, c10::DispatchKey::SparseCUDA, indices, values);
  }
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      taken(tensor.storage(), device), c10::DispatchKeySet(c10::DispatchKey::CUDA), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) {
    made._set_conj(true);
  }
  if (tensor.is_neg()) {
    made._set_neg(true);
  }
  return made;
}

c10::Storage Twins::taken(const c10::Storage& storage, c10::Device device) {
  for (const auto& [ours, lent] : storages_) {
    if (lent.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) {
      return ours;
    }
  }
  // New memory: from now on it is the device's.
  auto* impl = storage.unsafeGetStorageImpl();
  impl->_mutable_data_ptr_no_checks().unsafe_set_device(device);
  impl->set_allocator(device_allocator());
  return storage;
}

void Twins::settle() {
  for (auto& [ours, lent] : storages_) {
    auto* from = lent.unsafeGetStorageImpl();
    auto* to = ours.unsafeGetStorageImpl();
    if (from->data() == to->data() && from->nbytes() == to->nbytes()) {
      continue;
    }
    const c10::Device device = to->device();
    c10::DataPtr memory = from->set_data_ptr(c10::DataPtr(nullptr, c10::Device(c10::kCPU)));
    if (memory.get() != to->data()) {
      memory.unsafe_set_device(device);
      to->set_data_ptr_noswap(std::move(memory));
    }
    to->set_nbytes(from->nbytes());
  }
  for (auto& [ours, lent] : tensors_) {
    if (ours.is_sparse()) {
      const auto* from = sparse(lent);
      sparse(ours)->resize_(from->sparse_dim(), from->dense_dim(), lent.sizes());
      sparse(ours)->set_indices_and_values_unsafe(taken(from->indices(), ours.device()), taken(from->values(), ours.device()));
      sparse(ours)->set_coalesced(from->coalesced());
      continue;
    }
    auto* to = ours.unsafeGetTensorImpl();
    const auto* from = lent.unsafeGetTensorImpl();
    const c10::Storage storage = taken(lent.storage(), ours.device());
    if (storage.unsafeGetStorageImpl() != ours.storage().unsafeGetStorageImpl()) {
      to->set_storage_keep_dtype(storage);
    }
    if (to->sizes() != from->sizes() || to->strides() != from->strides() ||
        to->storage_offset() != from->storage_offset()) {
      to->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset());
    }
  }
}

}  // namespace pretend
