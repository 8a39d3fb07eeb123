#include "schedule/batch_builder.h"

#include <algorithm>

namespace batchllm {

namespace {

// How much of the chunk that starts at `computed` has been computed before.
int64_t recomputed(int32_t computed, int32_t chunk, int32_t highest) {
    return std::clamp(highest - computed, 0, chunk);
}

} // namespace

bool needs_output(const SamplingParams *params) {
    return params != nullptr && (params->repetition_penalty != 1 || params->presence_penalty != 0 ||
                                 params->frequency_penalty != 0 || forbids_by_output(*params));
}

void BatchBuilder::build(std::span<Request *const> running,
                         std::span<const int32_t> scheduled_prefixes, PrefixForest *forest,
                         AdapterSlots *adapters, const PictureSlots &pictures,
                         BatchRecord *record) {
    ++step_;
    adapters_ = adapters;
    pictures_ = &pictures;
    any_axes_ = false;
    batch_.clear();
    record_ = record;
    record->sampled.clear();
    record->tasks.clear();
    record->targets.clear();
    record->tokens.clear();
    record->proposed.clear();
    record->counts = {};
    for (Request *request : running)
        if (request->chunk > 0 && request->state == RequestState::decoding)
            own_node(request, forest);
    for (const int32_t prefix : scheduled_prefixes)
        if (forest->at(prefix).chunk > 0) prefix_node(prefix, forest);
    for (Request *request : running)
        if (request->chunk > 0 && request->state != RequestState::decoding)
            own_node(request, forest);
    if (!any_axes_) batch_.rope_positions.clear();
}

int32_t BatchBuilder::add_node(int32_t parent, int32_t start, int32_t computed, int32_t chunk,
                               const PageTable &pages, int32_t adapter, bool shared) {
    ContextNode node{};
    node.parent = parent;
    node.start = start;
    node.length = computed + chunk;
    node.token_begin = static_cast<int32_t>(batch_.tokens.size());
    node.token_count = chunk;
    node.shared = shared;
    node.state = pages.state;
    if (chunk > 0) {
        node.adapter = adapters_->slot(adapter);
        adapters_->use(adapter);
    }
    const int64_t columns = pages_for(node.length, page_tokens_);
    for (size_t g = 0; g < batch_.pages.size(); ++g) {
        const GroupPageTable &table = pages.group(g);
        GroupPages &group = batch_.pages[g];
        group.nodes.push_back({static_cast<int32_t>(group.list.size()) - table.first, table.first});
        group.list.insert(group.list.end(), table.pages.begin(),
                          table.pages.begin() + (columns - table.first));
    }
    batch_.nodes.push_back(node);
    return static_cast<int32_t>(batch_.nodes.size()) - 1;
}

int32_t BatchBuilder::prefix_node(int32_t prefix, PrefixForest *forest) {
    if (prefix < 0) return -1;
    if (forest->at(prefix).batch_step == step_) return forest->at(prefix).batch_node;
    chain_.clear();
    int32_t parent = prefix;
    for (; parent >= 0 && forest->at(parent).batch_step != step_;
         parent = forest->at(parent).parent)
        chain_.push_back(parent);
    int32_t node = parent < 0 ? -1 : forest->at(parent).batch_node;
    for (auto i = chain_.rbegin(); i != chain_.rend(); ++i) {
        ScheduledPrefix &part = forest->at(*i);
        node =
            add_node(node, part.start, part.computed, part.chunk, part.pages, part.adapter, true);
        part.batch_node = node;
        part.batch_step = step_;
        const int32_t begin = part.start + part.computed;
        if (part.chunk > 0) add_prompt(*part.source, begin, begin + part.chunk);
        const int64_t again = recomputed(part.computed, part.chunk, part.highest);
        record_->counts.prefix_tokens += part.chunk;
        record_->counts.recomputed_tokens += again;
        record_->counts.prompt_tokens += part.chunk - again;
    }
    return node;
}

void BatchBuilder::add_position(const Request &request, int32_t position) {
    batch_.positions.push_back(position);
    if (!rope_axes_) return;
    const bool text = request.rope_positions == nullptr;
    any_axes_ = any_axes_ || !text;
    batch_.rope_positions.push_back(text ? RopePosition{position, position, position}
                                         : request.rope_positions->at(position));
}

// Tokens [begin, end) of the request's prompt.
void BatchBuilder::add_prompt(const Request &request, int32_t begin, int32_t end) {
    const int32_t *tokens = request.prompt.tokens;
    int32_t position = begin;
    const auto add_text = [&](int32_t until) {
        for (; position < until; ++position) {
            batch_.tokens.push_back(tokens[position]);
            add_position(request, position);
        }
    };
    for (const PromptPicture &picture : request.pictures) {
        const int32_t picture_end = picture.begin + picture.length;
        if (picture_end <= begin) continue;
        if (picture.begin >= end) break;
        add_text(picture.begin);
        const auto is_of_it = [](int32_t id) { return id >= first_picture_id; };
        auto first = static_cast<int32_t>(
            std::count_if(tokens + picture.begin, tokens + position, is_of_it));
        while (position < std::min(picture_end, end)) {
            if (!is_of_it(tokens[position])) {
                add_text(position + 1);
                continue;
            }
            PictureTokens run{static_cast<int32_t>(batch_.tokens.size()), 0,
                              pictures_->slot(picture.number), first};
            for (; position < std::min(picture_end, end) && is_of_it(tokens[position]);
                 ++position) {
                batch_.tokens.push_back(picture_token_);
                add_position(request, position);
                ++run.token_count;
            }
            first += run.token_count;
            batch_.pictures.push_back(run);
        }
    }
    add_text(end);
}

void BatchBuilder::own_node(Request *request, PrefixForest *forest) {
    const int32_t parent = prefix_node(request->prefix, forest);
    const int32_t token_begin = static_cast<int32_t>(batch_.tokens.size());
    add_node(parent, request->own_begin, request->computed, request->chunk, request->pages,
             request->adapter, false);
    const int32_t prompt = request->prompt.length;
    const int32_t begin = request->own_begin + request->computed;
    const int32_t end = begin + request->chunk;
    add_prompt(*request, begin, std::min(end, prompt));
    for (int32_t position = std::max(begin, prompt); position < end; ++position) {
        const auto generated = static_cast<size_t>(position - prompt);
        const size_t known = request->output.size();
        batch_.tokens.push_back(generated < known           ? request->output[generated]
                                : request->proposed.empty() ? fed_token(request->logits_row)
                                                            : request->proposed[generated - known]);
        add_position(*request, position);
    }
    add_logits(request, token_begin);
    StepCounts &counts = record_->counts;
    counts.requests += 1;
    if (request->state == RequestState::decoding) {
        counts.decode_tokens += request->chunk;
        counts.draft_tokens += static_cast<int64_t>(request->proposed.size());
    } else {
        counts.own_tokens += request->chunk;
        counts.recomputed_tokens += recomputed(request->computed, request->chunk, request->highest);
        const int32_t first = std::max(begin, request->own_begin + request->highest);
        counts.prompt_tokens += std::max(0, std::min(end, prompt) - first);
    }
}

void BatchBuilder::add_row(Request *request, const OutputRow &row, int32_t proposed) {
    batch_.outputs.push_back(row);
    record_->sampled.push_back(request);
    record_->tasks.push_back(row.task);
    record_->targets.push_back(static_cast<int32_t>(row.targets.size()));
    record_->tokens.push_back(row.count);
    record_->proposed.push_back(proposed);
}

// The sample behind the request's last known token, and those behind each proposed one.
void BatchBuilder::add_samples(Request *request, int32_t token_begin, OutputRow row) {
    const auto proposed = static_cast<int32_t>(request->proposed.size());
    row.token = token_begin + request->chunk - 1 - proposed;
    row.sample.position = request->own_begin + request->computed + request->chunk - proposed;
    request->feeds =
        proposed == 0 && feeds_ != nullptr && !needs_output(request->params) && feeds_(row.sample);
    add_row(request, row);
    for (const int32_t token : request->proposed) {
        row.token += 1;
        row.sample.position += 1;
        add_row(request, row, token);
    }
}

// Adds the scores of the prompt after the row that samples, which is the request's first.
void BatchBuilder::add_prompt_scores(Request *request, int32_t token_begin, OutputRow row) {
    const int32_t begin = request->own_begin + request->computed;
    const int32_t end =
        std::min(begin + request->chunk, static_cast<int32_t>(request->targets.size()));
    row.task = Task::score;
    for (int32_t i = std::max(begin, request->taken); i < end; ++i) {
        row.token = token_begin + i - begin;
        row.sample.position = i + 1;
        row.targets = {request->targets.data() + i, 1};
        add_row(request, row);
    }
}

void BatchBuilder::add_logits(Request *request, int32_t token_begin) {
    const int32_t prompt = request->prompt.length;
    const int32_t begin = request->own_begin + request->computed;
    const int32_t end = begin + request->chunk;
    OutputRow row{};
    row.sample.params = request->params;
    row.sample.prompt = {request->prompt.tokens, static_cast<size_t>(prompt)};
    row.sample.output = request->output;
    row.sample.random_key = request->random_key;
    request->logits_row = static_cast<int32_t>(batch_.outputs.size());
    row.task = request->task;
    if (request->task == Task::generate) {
        const auto known = static_cast<int32_t>(request->output.size());
        if (end >= prompt + known + request->unknown) {
            add_samples(request, token_begin, row);
        }
        add_prompt_scores(request, token_begin, row);
        return;
    }
    const int32_t first_wanted = prompt - request->wanted_positions;
    const int32_t first = std::max(request->taken, begin - first_wanted);
    if (embedded(request->task)) {
        if (first_wanted + first >= end) return;
        row.token = token_begin + first_wanted + first - begin;
        const int32_t count = end - first_wanted - first;
        row.count = single_tokens_ ? 1 : count;
        for (int32_t i = 0; i < count; i += row.count, row.token += row.count) {
            add_row(request, row);
        }
        return;
    }
    for (int32_t i = first; first_wanted + i < end; ++i) {
        const size_t target = static_cast<size_t>(request->target_offsets[static_cast<size_t>(i)]);
        const size_t target_end =
            static_cast<size_t>(request->target_offsets[static_cast<size_t>(i) + 1]);
        row.token = token_begin + first_wanted + i - begin;
        row.sample.position = first_wanted + i + 1;
        row.targets = {request->targets.data() + target, target_end - target};
        add_row(request, row);
    }
}

} // namespace batchllm
