// Steps of a layer with a state as replays of a CUDA graph, on the device. Includes cmocka: include this last.
#pragma once

#include <vector>

#include "step/states.h"

#include "cuda_arrays.h"

#include "state_steps.h"

namespace batchllm::cuda {

// Launches the first step, captures the second and replays that graph for it and for all later
// ones, like a model's steps of one shape (step/graphs.h). steps: the tokens of each sequence in
// each step; all steps have the same total of tokens and need the launches of `form`. device: the
// layer, with its step, input, staging and weights.
template <typename Device, typename Sequence>
void run_replays(const std::vector<std::vector<int32_t>> &steps, DType type, int64_t values,
                 uint8_t form, Device *device, std::vector<Sequence> *sequences) {
    int64_t tokens = 0;
    for (const int32_t count : steps[0]) tokens += count;
    const int64_t stride = device->weights.qkv.rows;
    const Array x(tokens * stride, type), out(tokens * values, type);
    auto made = Stream::create();
    check(made.status());
    const Stream stream = std::move(made).value();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    const auto launch = [&] {
        check(device->step.launch(0, device->weights, x.data(), out.data(), nullptr, tokens,
                                  device->input, stream));
    };
    for (size_t s = 0; s < steps.size(); ++s) {
        StateStep step;
        for (size_t i = 0; i < sequences->size(); ++i) {
            step.add(steps[s][i], stride, &(*sequences)[i]);
        }
        assert_int_equal(step.batch.tokens.size(), tokens);
        const Array inputs(step.projected, type);
        const auto bytes = static_cast<size_t>(tokens * stride * dtype_bytes(type));
        check(cudaMemcpy(x.data(), inputs.data(), bytes, cudaMemcpyDeviceToDevice));
        device->staging.clear();
        check(device->step.stage(step.batch, &device->input, &device->staging));
        check(device->staging.send(nullptr));
        const Result<bool> moved = device->input.reserve(nullptr);
        check(moved.status());
        check(device->input.fill(device->staging, nullptr));
        check(cudaDeviceSynchronize());
        assert_int_equal(device->step.form().size(), 1);
        assert_int_equal(device->step.form()[0], form);
        if (s == 0) {
            launch();
        } else {
            assert_false(*moved); // the graph contains the addresses
            if (s == 1) {
                check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
                launch();
                check(cudaStreamEndCapture(stream, &graph));
                check(cudaGraphInstantiate(&exec, graph, 0));
            }
            check(cudaGraphLaunch(exec, stream));
        }
        step.give(out.read(), values, sequences);
    }
    check(cudaGraphExecDestroy(exec));
    check(cudaGraphDestroy(graph));
}

} // namespace batchllm::cuda
