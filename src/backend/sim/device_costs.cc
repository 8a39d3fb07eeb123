#include "backend/sim/device_costs.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "backend/gpu/gated_product.h"
#include "backend/gpu/step_buffers.h"
#include "base/file.h"
#include "base/json.h"

namespace batchllm {
namespace {

constexpr size_t most_costs_bytes = size_t{1} << 20;
constexpr size_t most_products = 256;

// Fitted to the jobs of bench/throughput and the cases of bench/attention in docs/lab/jobs.md.
DeviceCosts h200() {
    DeviceCosts costs;
    costs.name = "NVIDIA H200";
    costs.gpu = true;
    costs.memory_bytes = int64_t{150754820096};
    costs.page_tokens = 64;
    costs.step_tokens = most_step_tokens;
    costs.batches_in_flight = 2;
    costs.products = {{32, 7.1e13},   {128, 2.67e14}, {256, 4.36e14}, {512, 5.96e14},
                      {1024, 6.5e14}, {2048, 6.8e14}, {4096, 7e14},   {8192, 7.05e14}};
    costs.product_us = 2;
    costs.memory_bandwidth = 3e12;
    costs.attention_flops = 5.2e14;
    costs.attention_bandwidth = 4.4e12;
    costs.attention_overlap = 0.3;
    costs.attention_us = 20;
    costs.merge_ns = 1.4;
    costs.step_us = 60;
    costs.host_us = 335;
    costs.host_token_us = 0.18;
    costs.experts = {{16, 6.4e13},  {64, 2.43e14},  {128, 4.1e14},
                     {256, 5.2e14}, {512, 5.65e14}, {2048, 6e14}};
    costs.fp8_products = {{64, 2.7e14},    {128, 5.1e14},   {256, 8.2e14},   {512, 1.05e15},
                          {1024, 1.15e15}, {4096, 1.23e15}, {16384, 1.25e15}};
    costs.fp8_experts = {{16, 1.18e14}, {64, 4.28e14},  {128, 6.3e14},
                         {256, 7.6e14}, {512, 8.35e14}, {2048, 8.7e14}};
    costs.routing_us = 20;
    costs.routing_ns = 0.3;
    costs.expert_step_tokens = 8192;
    costs.gated_tokens = least_gated_tokens;
    // Two H100s that read each other's memory by NVLink 4 (docs/lab/tensor-parallel.md); of more devices it is assumed.
    costs.exchange_us = 9;
    costs.link_bandwidth = 3.3e11;
    return costs;
}

// Fitted to jobs of bench/throughput (docs/lab/engine.md): a device that was just idle, as device_probe.h measures it,
// has faster products of some sizes than one at its power limit. Experts of up to 128 rows are as bench/four_bits has
// them in 16 bits there (docs/lab/four-bits.md); of more rows, which run at the power limit, and in fp8 they are the
// H200's rates, scaled as the products are, or with few rows as in 16 bits. A merge is as on the H200, so that common
// prefixes have the same price.
DeviceCosts h100() {
    DeviceCosts costs = h200();
    costs.name = "NVIDIA H100 80GB HBM3";
    costs.memory_bytes = int64_t{85664174551};
    costs.products = {{16, 4.5e13},  {32, 8.6e13},   {64, 1.73e14},   {128, 3.5e14}, {256, 5.7e14},
                      {512, 6.4e14}, {1024, 6.8e14}, {2048, 6.95e14}, {4096, 7e14},  {8192, 7e14}};
    costs.memory_bandwidth = 2.5e12;
    costs.attention_flops = 5.6e14;
    costs.attention_bandwidth = 3.05e12;
    costs.experts = {{16, 4.6e13}, {64, 1.8e14},  {128, 3.3e14},
                     {256, 5e14},  {512, 5.5e14}, {2048, 5.8e14}};
    costs.fp8_experts = {{16, 8.5e13},  {64, 3.17e14}, {128, 5.1e14},
                         {256, 7.3e14}, {512, 8.1e14}, {2048, 8.4e14}};
    return costs;
}

// The rates of an H200, as its maker states them: 132 multiprocessors at 1.98 GHz.
constexpr double h200_product_flops = 132 * 1.98e9 * 4096;
constexpr double h200_memory_bandwidth = 4.8e12;

// What multiplies is as fast as the device's products, and what moves bytes, merges among it, as its memory.
DeviceCosts derived_from_h200(const ComputeDevice &device) {
    const auto ratio = [](double here, double there) { return here > 0 ? here / there : 1; };
    const double products = ratio(device.product_flops, h200_product_flops);
    const double memory = ratio(device.memory_bandwidth, h200_memory_bandwidth);
    DeviceCosts costs = h200();
    costs.name = device.name;
    for (DeviceCosts::Product &product : costs.products) product.flops *= products;
    scale_unmeasured(products, memory, &costs);
    costs.attention_flops *= products;
    costs.memory_bandwidth *= memory;
    costs.attention_bandwidth *= memory;
    costs.merge_ns /= memory;
    return costs;
}

// Two cores with AVX-512 and BF16. merge_ns follows from the point at which common prefixes broke
// even with a small model there (docs/lab/engine.md). On processors with slower products, merges
// are slower too.
DeviceCosts processor() {
    DeviceCosts costs;
    costs.step_tokens = 512;
    costs.products = {{16, 3.8e11}, {64, 4.6e11}, {512, 4.9e11}};
    costs.memory_bandwidth = 2.9e10;
    costs.attention_flops = 3.1e11;
    costs.attention_bandwidth = 3.7e10;
    costs.merge_ns = 60;
    return costs;
}

struct Named {
    const char *name;
    DeviceCosts (*make)();
};
constexpr std::array<Named, 2> known = {{{"h200", h200}, {"h100", h100}}};

struct Key {
    const char *name;
    double DeviceCosts::*field;
    double least, most;
};
constexpr std::array<Key, 10> cost_numbers = {{
    {"product_us", &DeviceCosts::product_us, 0, 1e9},
    {"memory_bandwidth", &DeviceCosts::memory_bandwidth, 1, 1e18},
    {"attention_flops", &DeviceCosts::attention_flops, 1, 1e21},
    {"attention_bandwidth", &DeviceCosts::attention_bandwidth, 1, 1e18},
    {"attention_overlap", &DeviceCosts::attention_overlap, 0, 1},
    {"attention_us", &DeviceCosts::attention_us, 0, 1e9},
    {"merge_ns", &DeviceCosts::merge_ns, 0, 1e9},
    {"step_us", &DeviceCosts::step_us, 0, 1e9},
    {"host_us", &DeviceCosts::host_us, 0, 1e9},
    {"host_token_us", &DeviceCosts::host_token_us, 0, 1e9},
}};

Result<std::vector<DeviceCosts::Product>> read_products(const JsonValue &value) {
    ASSIGN_OR_RETURN(const std::vector<JsonValue> items, value.elements());
    if (items.empty() || items.size() > most_products) {
        return value.fail("not 1 to 256 pairs of rows and flops a second");
    }
    std::vector<DeviceCosts::Product> products;
    for (const JsonValue &item : items) {
        ASSIGN_OR_RETURN(const std::vector<JsonValue> pair, item.elements());
        if (pair.size() != 2) return item.fail("not a pair of rows and flops a second");
        DeviceCosts::Product product;
        ASSIGN_OR_RETURN(product.rows, pair[0].number(1, 1e9));
        ASSIGN_OR_RETURN(product.flops, pair[1].number(1, 1e21));
        if (!products.empty() && product.rows <= products.back().rows) {
            return item.fail("rows must rise from pair to pair");
        }
        products.push_back(product);
    }
    return products;
}

// Checked before anything else is read: files of older and newer libraries also have other keys.
// Those of format 1 do not name it, but all formats have "products".
Status check_format(const JsonValue &root, const std::string &file) {
    if (!root.is_object()) return root.fail("a description of a device is an object");
    int64_t format = 1;
    if (const auto given = root.given("format")) {
        ASSIGN_OR_RETURN(format, given->integer(1, INT32_MAX));
    } else if (!root.find("products").has_value()) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "%s: no description of a device: \"format\" is missing", file.c_str());
    }
    if (format == device_costs_format) return {};
    const bool older = format < device_costs_format;
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "%s: a description of format %lld, from %s version of this library, which reads "
                 "format %lld. Measure the device again, by a prediction for the device here on "
                 "its machine: "
                 "the new description is kept in the cache, as costs-*.json",
                 file.c_str(), static_cast<long long>(format), older ? "an older" : "a newer",
                 static_cast<long long>(device_costs_format));
}

// The keys that a description may omit.
Status read_optional_keys(const JsonValue &root, DeviceCosts *costs) {
    if (const auto fraction = root.given("kv_fraction")) {
        ASSIGN_OR_RETURN(costs->kv_fraction, fraction->number(0.01, 1));
    }
    for (const auto &[name, field] : {std::pair("experts", &DeviceCosts::experts),
                                      std::pair("fp8_products", &DeviceCosts::fp8_products),
                                      std::pair("fp8_experts", &DeviceCosts::fp8_experts)}) {
        if (const auto rates = root.given(name)) {
            ASSIGN_OR_RETURN(costs->*field, read_products(*rates));
        }
    }
    for (const auto &[name, field] : {std::pair("routing_us", &DeviceCosts::routing_us),
                                      std::pair("routing_ns", &DeviceCosts::routing_ns),
                                      std::pair("exchange_us", &DeviceCosts::exchange_us)}) {
        if (const auto routing = root.given(name)) {
            ASSIGN_OR_RETURN(costs->*field, routing->number(0, 1e9));
        }
    }
    if (const auto link = root.given("link_bandwidth")) {
        ASSIGN_OR_RETURN(costs->link_bandwidth, link->number(0, 1e18));
    }
    for (const auto &[name, field] :
         {std::pair("expert_step_tokens", &DeviceCosts::expert_step_tokens),
          std::pair("gated_tokens", &DeviceCosts::gated_tokens)}) {
        if (const auto tokens = root.given(name)) {
            ASSIGN_OR_RETURN(costs->*field, tokens->integer(0, int64_t{1} << 24));
        }
    }
    return {};
}

std::string number_text(double value) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.9g", value);
    return std::string(text.data());
}

std::string products_text(const std::vector<DeviceCosts::Product> &products) {
    std::string text = "[";
    for (const DeviceCosts::Product &product : products) {
        text.append(text.size() == 1 ? "[" : ", [").append(number_text(product.rows));
        text.append(", ").append(number_text(product.flops)).append("]");
    }
    return text + "]";
}

} // namespace

std::string device_names() {
    std::string names;
    for (const Named &device : known) {
        names.append(names.empty() ? "" : ", ").append(device.name);
    }
    return names;
}

Result<DeviceCosts> named_device_costs(std::string_view name) {
    for (const Named &device : known) {
        if (name == device.name) return device.make();
    }
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "device \"%s\" is not known: there are %s, and files that end in .json; for a "
                 "prediction also \"here\", this machine",
                 std::string(name).c_str(), device_names().c_str());
}

void scale_unmeasured(double products, double memory, DeviceCosts *costs) {
    for (DeviceCosts::Product &product : costs->fp8_products) product.flops *= products;
    for (std::vector<DeviceCosts::Product> *rates : {&costs->experts, &costs->fp8_experts}) {
        if (rates->empty()) continue;
        const double read = memory * rates->front().flops / rates->front().rows;
        for (DeviceCosts::Product &product : *rates) {
            product.flops = std::min(product.flops * products, product.rows * read);
        }
    }
}

DeviceCosts costs_of_device(const ComputeDevice &device) {
    if (device.kind == DeviceKind::processor) return processor();
    for (const Named &named : known) {
        DeviceCosts costs = named.make();
        if (costs.name == device.name) return costs;
    }
    return derived_from_h200(device);
}

Result<DeviceCosts> find_device_costs(const std::string &name) {
    if (name.find('/') == std::string::npos && !name.ends_with(".json")) {
        return named_device_costs(name);
    }
    ASSIGN_OR_RETURN(std::string text, read_file(name, most_costs_bytes));
    return parse_device_costs(std::move(text), name);
}

Result<DeviceCosts> parse_device_costs(std::string text, const std::string &file) {
    ASSIGN_OR_RETURN(const JsonDocument document,
                     JsonDocument::parse(text, file, BATCHLLM_ERROR_INVALID_ARGUMENT));
    const JsonValue root = document.root();
    RETURN_IF_ERROR(check_format(root, file));
    RETURN_IF_ERROR(root.only_keys({"format",
                                    "name",
                                    "gpu",
                                    "memory_bytes",
                                    "kv_fraction",
                                    "page_tokens",
                                    "step_tokens",
                                    "batches_in_flight",
                                    "products",
                                    "product_us",
                                    "memory_bandwidth",
                                    "attention_flops",
                                    "attention_bandwidth",
                                    "attention_overlap",
                                    "attention_us",
                                    "merge_ns",
                                    "step_us",
                                    "host_us",
                                    "host_token_us",
                                    "experts",
                                    "fp8_products",
                                    "fp8_experts",
                                    "routing_us",
                                    "routing_ns",
                                    "expert_step_tokens",
                                    "gated_tokens",
                                    "exchange_us",
                                    "link_bandwidth"}));
    DeviceCosts costs;
    ASSIGN_OR_RETURN(costs.name, root.string("name"));
    ASSIGN_OR_RETURN(costs.gpu, root.boolean("gpu"));
    ASSIGN_OR_RETURN(const JsonValue memory, root.at("memory_bytes"));
    ASSIGN_OR_RETURN(costs.memory_bytes, memory.integer(1, int64_t{1} << 50));
    ASSIGN_OR_RETURN(const JsonValue page, root.at("page_tokens"));
    ASSIGN_OR_RETURN(const int64_t page_tokens, page.integer(1, 4096));
    costs.page_tokens = static_cast<int32_t>(page_tokens);
    ASSIGN_OR_RETURN(const JsonValue step, root.at("step_tokens"));
    ASSIGN_OR_RETURN(costs.step_tokens, step.integer(1, int64_t{1} << 24));
    ASSIGN_OR_RETURN(const JsonValue flying, root.at("batches_in_flight"));
    ASSIGN_OR_RETURN(const int64_t in_flight, flying.integer(1, 2));
    costs.batches_in_flight = static_cast<int32_t>(in_flight);
    ASSIGN_OR_RETURN(const JsonValue products, root.at("products"));
    ASSIGN_OR_RETURN(costs.products, read_products(products));
    for (const Key &key : cost_numbers) {
        ASSIGN_OR_RETURN(const JsonValue value, root.at(key.name));
        ASSIGN_OR_RETURN(costs.*key.field, value.number(key.least, key.most));
    }
    RETURN_IF_ERROR(read_optional_keys(root, &costs));
    return costs;
}

std::string device_costs_text(const DeviceCosts &costs) {
    std::string text =
        "{\n  \"format\": " + std::to_string(device_costs_format) + ",\n  \"name\": \"";
    for (const char c : costs.name) { // the device's name, with a space for anything that JSON
                                      // would escape
        const bool plain = c >= ' ' && c != '"' && c != '\\' && c != '\x7f';
        text += plain ? c : ' ';
    }
    text += costs.gpu ? "\",\n  \"gpu\": true" : "\",\n  \"gpu\": false";
    text += ",\n  \"memory_bytes\": " + std::to_string(costs.memory_bytes);
    text += ",\n  \"kv_fraction\": " + number_text(costs.kv_fraction);
    text += ",\n  \"page_tokens\": " + std::to_string(costs.page_tokens);
    text += ",\n  \"step_tokens\": " + std::to_string(costs.step_tokens);
    text += ",\n  \"batches_in_flight\": " + std::to_string(costs.batches_in_flight);
    text += ",\n  \"products\": " + products_text(costs.products);
    for (const Key &key : cost_numbers) {
        text.append(",\n  \"").append(key.name).append("\": ");
        text.append(number_text(costs.*key.field));
    }
    for (const auto &[name, rates] :
         {std::pair("experts", &costs.experts), std::pair("fp8_products", &costs.fp8_products),
          std::pair("fp8_experts", &costs.fp8_experts)}) {
        if (rates->empty()) continue;
        text.append(",\n  \"").append(name).append("\": ").append(products_text(*rates));
    }
    text += ",\n  \"routing_us\": " + number_text(costs.routing_us);
    text += ",\n  \"routing_ns\": " + number_text(costs.routing_ns);
    text += ",\n  \"expert_step_tokens\": " + std::to_string(costs.expert_step_tokens);
    text += ",\n  \"gated_tokens\": " + std::to_string(costs.gated_tokens);
    text += ",\n  \"exchange_us\": " + number_text(costs.exchange_us);
    text += ",\n  \"link_bandwidth\": " + number_text(costs.link_bandwidth);
    return text + "\n}\n";
}

} // namespace batchllm
