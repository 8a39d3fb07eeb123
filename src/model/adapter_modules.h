// What of a model adapters may change, by the names of its modules: linear modules, and parameters with a
// matrix for each expert. Made once for all adapters of a model, since experts are many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"

namespace batchllm {

class AdapterModules {
  public:
    // Matrices of the model that are parts of one tensor of its files, which a module of PEFT's has.
    struct Part {
        const Tensor *matrix;
        int64_t first_row; // in the module's tensor: of the expert's, if there are experts
        int64_t row_step;
    };

    // A linear module of the base model: W [rows, columns].
    struct Module {
        int64_t rows = 0;
        int64_t columns = 0;
        std::vector<Part> parts;
        bool of_latents = false; // Latent::up, which backends split by heads
    };

    // A parameter of a module that has a matrix for each expert: [experts, rows, columns], or transposed.
    struct Stacked {
        std::string name; // the parameter's full name
        bool transposed = false;
        std::vector<Module> experts;
    };

    explicit AdapterModules(const Model &model); // which must outlive it

    const Model &model() const { return model_; }

    // A module's name here, whether it is called as in the model's files or in the reference.
    std::string name_of(const std::string &module) const;
    const Module *find(const std::string &name) const;
    // A module's parameters with a matrix for each expert.
    std::span<const Stacked> stacked(const std::string &name) const;

  private:
    Module &module_of(const std::string &tensor);
    void add(const std::string &name, const Tensor &tensor);
    void add_experts(const Experts &experts);
    void add_single(const std::string &prefix, size_t index, const FeedForward &expert);
    void add_stacked(const Experts &experts, const std::string &up_module, const std::string &up,
                     const std::string &down_module, const std::string &down);

    const Model &model_;
    std::map<std::string, Module> modules_;
    std::map<std::string, std::vector<Stacked>> stacked_;
};

} // namespace batchllm
