// Adding requests, and ending them.
#include <algorithm>
#include <stdexcept>

#include "schedule/scheduler_impl.h"

namespace batchllm {

namespace {

int64_t stored_at_most(const Request &request) {
    return request.prompt.length + std::max<int64_t>(0, int64_t{request.max_tokens} - 1);
}

} // namespace

// ---- Adding rows ----

Status Scheduler::Impl::check(std::span<Request *const> requests) const {
    for (size_t i = 0; i < requests.size(); ++i) {
        const Request *request = requests[i];
        if (!request) continue;
        if (request->prompt.length < 1 || request->wanted_positions > request->prompt.length ||
            (request->task == Task::generate ? request->max_tokens : request->wanted_positions) <
                1 ||
            (request->task == Task::generate &&
             static_cast<int32_t>(request->targets.size()) >= request->prompt.length))
            return error(BATCHLLM_ERROR_INTERNAL, "scheduler: row %zu has nothing to compute", i);
        if (stored_at_most(*request) > pool.most_tokens())
            return error(BATCHLLM_ERROR_ROW_TOO_LARGE,
                         "row %zu needs keys and values of %lld tokens, the pool holds %lld", i,
                         static_cast<long long>(stored_at_most(*request)),
                         static_cast<long long>(pool.most_tokens()));
        for (const PromptPicture &picture : request->pictures) {
            if (!has_room_for_picture(stored_at_most(*request), picture.length))
                return error(BATCHLLM_ERROR_INTERNAL, "scheduler: row %zu has too large a picture",
                             i);
        }
    }
    return {};
}

// The picture fits a step, and the pool beside the windows before it.
bool Scheduler::Impl::has_room_for_picture(int64_t stored, int32_t length) const {
    if (!options.whole_pictures) return true;
    int64_t pages = 0;
    for (const KvWindow &kind : pool.windows()) {
        const int64_t most = kind.window == 0 ? stored : int64_t{kind.window} + length;
        pages += kind.groups * (1 + pages_for(std::min(stored, most), pool.page_tokens()));
    }
    return length <= options.step_tokens && (!pool.slides() || pages <= pool.total());
}

// The most of these first tokens that cut no picture which has to be in one batch.
int32_t Scheduler::Impl::uncut(const Request &request, int32_t tokens) const {
    return static_cast<int32_t>(whole_pictures(request, 0, tokens));
}

void Scheduler::Impl::enqueue(Request *request, int32_t prefix) {
    request->state = RequestState::waiting;
    request->prefix = prefix;
    request->own_begin = prefix < 0 ? 0 : forest.at(prefix).start + forest.at(prefix).length;
    request->computed = request->chunk = request->highest = request->taken = 0;
    request->unknown = request->drafted = request->generated = 0;
    request->preemptions = 0;
    request->pages = {};
    request->place = first_place + static_cast<int64_t>(queue.size());
    if (prefix >= 0) forest.add_pending(prefix);
    adapters.add_pending(request->adapter);
    queue.push_back(request);
    ++waiting;
    waiting_output += request->max_tokens;
    own_tokens_left += own_prompt(*request);
    longest = std::max<int64_t>(longest, request->max_tokens);
}

// *own_node: the node of the tokens that only the group's requests share; -1: it is not made yet.
void Scheduler::Impl::add(std::span<const PlanPrefix> prefixes, int32_t prefix, int32_t own_common,
                          Request *request, int32_t *own_node) {
    const int32_t limit = std::min(request->prompt.shareable,
                                   request->prompt.length - std::max(1, request->wanted_positions));
    own_common = uncut(*request, own_common);
    if (*own_node >= 0 && own_common <= limit) return enqueue(request, *own_node);
    // The longest of the chain that is not too long, and that no prefix before it makes wait for ever:
    // one that ends inside a picture which has to be in one batch.
    for (int32_t i = prefix; i >= 0; i = prefixes[static_cast<size_t>(i)].parent) {
        const int32_t length = prefixes[static_cast<size_t>(i)].length;
        if (length > limit || uncut(*request, length) < length)
            prefix = prefixes[static_cast<size_t>(i)].parent;
    }
    int32_t node = forest.of_plan(prefixes, prefix);
    const int32_t length = prefix < 0 ? 0 : prefixes[static_cast<size_t>(prefix)].length;
    if (own_common > length && own_common <= limit) node = *own_node = forest.add(node, own_common);
    enqueue(request, node);
}

Status Scheduler::add(std::span<const PlanPrefix> prefixes, const RequestGroup &group) {
    RETURN_IF_ERROR(impl_->check(group.requests));
    int32_t own_node = -1;
    for (Request *request : group.requests)
        if (request) impl_->add(prefixes, group.prefix, group.own_common, request, &own_node);
    return {};
}

void Scheduler::more_to_come(int64_t prompt_tokens, int64_t output_tokens) {
    impl_->coming_prompt = prompt_tokens;
    impl_->coming_output = output_tokens;
}

void Scheduler::begin_plan() { impl_->forest.begin_plan(); }
bool Scheduler::has(int32_t prefix) const { return impl_->forest.has(prefix); }
void Scheduler::keep(int32_t prefix) { impl_->forest.keep(prefix); }
void Scheduler::release(int32_t prefix) { impl_->forest.stop_keeping(prefix); }

// ---- Ends of a batch and of a request ----

void Scheduler::finish_step() {
    Impl &impl = *impl_;
    if (impl.in_flight == 0) return;
    BatchRecord &record = impl.record(0);
    impl.oldest = (impl.oldest + 1) % impl.records.size();
    impl.in_flight -= 1;
    bool any_ended = false;
    for (size_t i = 0; i < record.sampled.size(); ++i) {
        Request *request = record.sampled[i];
        if (request == nullptr || request->state == RequestState::finished) continue;
        if (record.tasks[i] == Task::generate && record.proposed[i] < 0) {
            request->unknown -= 1;
            impl.take_back_refused(request);
            while (static_cast<int64_t>(request->output.size()) > request->generated) {
                impl.lengths.generated(request->max_tokens, request->generated);
                request->generated += 1;
            }
        }
        if (request->done) {
            if (request->task == Task::generate)
                impl.lengths.ended(request->max_tokens,
                                   static_cast<int64_t>(request->output.size()));
            impl.end(request);
            any_ended = true;
        } else if (request->state == RequestState::ending && impl.in_flight == 0) {
            throw std::logic_error("scheduler: a request that is not done has nothing left to do");
        }
    }
    if (any_ended)
        std::erase_if(impl.running, [](const Request *request) {
            return request->state == RequestState::finished;
        });
    if (impl.in_flight == 0) impl.held_back = 0;
    impl.lengths.forget(impl.longest);
}

// Its samples are known: what is stored behind the last of them is not its own.
void Scheduler::Impl::take_back_refused(Request *request) {
    if (request->drafted == 0) return;
    request->drafted = 0;
    if (request->state != RequestState::decoding) return; // preempted: nothing of it is stored
    request->computed = static_cast<int32_t>(own_target(*request)) - 1;
    request->highest = std::max(request->highest, request->computed);
    pool.slide(&request->pages, request->computed);
}

// Releases what an admitted request holds.
void Scheduler::Impl::leave(Request *request) {
    request->computed = 0;
    pool.give(&request->pages);
    adapters.release(request->adapter);
    if (request->prefix >= 0) budget += forest.release(request->prefix);
}

// Ends a request with nothing left to compute, which has no pages.
void Scheduler::Impl::forget(Request *request) {
    own_tokens_left -= own_prompt_left(*request);
    adapters.remove_pending(request->adapter);
    if (request->prefix >= 0) forest.remove_pending(request->prefix);
}

void Scheduler::Impl::leave_queue(Request *request) {
    --waiting;
    waiting_output -= request->max_tokens;
    if (request->place >= 0) {
        queue[static_cast<size_t>(request->place - first_place)] = nullptr;
        request->place = -1;
        return;
    }
    const auto at = std::find(preempted.begin(), preempted.end(), request);
    if (at == preempted.end()) throw std::logic_error("scheduler: a request ends that never came");
    preempted.erase(at);
}

// Ends a request that is done. The caller removes it from `running`.
void Scheduler::Impl::end(Request *request) {
    if (request->state == RequestState::ending) {
        --ending;
    } else {
        if (request->state == RequestState::waiting) {
            leave_queue(request);
        } else {
            leave(request);
        }
        forget(request);
    }
    request->state = RequestState::finished;
    clear_rows(request);
}

// Discards what the newest batch in flight will sample for the request.
void Scheduler::Impl::clear_rows(Request *request) {
    if (in_flight == 0) return;
    std::vector<Request *> &sampled = record(in_flight - 1).sampled;
    // If the request is not in this batch, its logits_row is from an older one and now belongs to
    // another row.
    for (size_t row = static_cast<size_t>(request->logits_row);
         row < sampled.size() && sampled[row] == request; ++row)
        sampled[row] = nullptr;
}

void Scheduler::discard_sample(Request *request) {
    Impl &impl = *impl_;
    if (request->state != RequestState::decoding || request->unknown != 1)
        throw std::logic_error("scheduler: a sample to discard that nothing waits for");
    impl.held_back -= batchllm::held_back(*request);
    request->unknown = 0;
    impl.clear_rows(request);
}

void Scheduler::drop(Request *request) {
    Impl &impl = *impl_;
    if (request->state == RequestState::finished) return;
    impl.end(request);
    // That was the newest batch; the request may also be in the one before it.
    for (int32_t i = 0; i + 1 < impl.in_flight; ++i) {
        std::vector<Request *> &sampled = impl.record(i).sampled;
        std::replace(sampled.begin(), sampled.end(), request, static_cast<Request *>(nullptr));
    }
    std::erase(impl.running, request);
}

} // namespace batchllm
