// Files of an adapter -> an Adapter of a model.
//
// Which matrices are changed, and with which rank, the tensors say; they must agree with the
// configuration. Everything is checked before it is used.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "model/adapter.h"
#include "model/adapter_files.h"
#include "model/adapter_modules.h"

namespace batchllm {

// Whether there is anything but LoRA's matrices: make_adapter() must have the bytes then.
bool has_others(const AdapterFiles &files);

// The model of the modules must outlive the adapter, whose last `bytes` are the files' weights. copied_bytes: the size of
// the others. AdapterReading::check: the numbers of the adapter's matrices are not to be read.
Result<std::shared_ptr<Adapter>> make_adapter(AdapterFiles files, const AdapterModules &modules,
                                              int64_t *copied_bytes = nullptr);

} // namespace batchllm
