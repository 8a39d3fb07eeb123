// The three queues, admission and preemption.
//
// Requests run in order of admission, and one is admitted only if the tokens of all running
// requests are scheduled and some of the budget is left (of which scheduler_pace.cc may keep some back
// beside decode tokens). So at the start of a step, at most one
// request, the youngest, has prompt tokens left: the second and third queue hold what that request
// and those admitted in this step still need.
//
// Why every job finishes if each of its requests fits the pool alone. Three rules:
//   1. A page is taken from a request only for a decode token of a request that was admitted before
//      it; the youngest request loses its pages first. So the oldest is never preempted.
//   2. Suppose that no page is free, that all idle prefixes and all younger requests have given up
//      theirs, and that the oldest request, now alone, still finds none in a step in which nothing
//      else was planned. Then its pages would fit but for the slots that its prefixes' last pages
//      leave empty and the pages that its prefixes keep in groups whose window has moved on. So it
//      starts again without sharing, once, and Scheduler::longest_request guarantees that this
//      fits. The same applies if state slots are short: a request without a prefix needs one slot,
//      and a decode token none.
//   3. If no request runs, the next waiting request is admitted, whatever the forecast says. (With a
//      batch in flight its adapter may find no slot; once none is in flight, every adapter but those
//      held gives up its slot, and any adapter alone fits. Until the adapter is ready, the runtime
//      waits. The same holds for a picture that a prompt has come to, of which any alone fits; if it has
//      to be in one batch, it is no longer than a step, and decode tokens come to an end.)
// Order the states of a job lexicographically by (requests finished, requests restarted unshared,
// output tokens generated, prompt tokens stored for admitted requests and their prefixes). Each of
// the four is bounded, and each step increases the state:
//   - if the oldest request decodes, it gets its token, by rules 1 and 2. Output is never lost:
//     preemption drops keys and values, which are computed again, from prompt and output, as one
//     prefill;
//   - if not, it is alone, by the above, and gets prompt tokens or restarts; no request is
//     preempted.
// With a batch in flight, the oldest request may lack a token that is being sampled: then that
// batch delivers it, and output grows. Requests that wait for their last samples hold no pages, so
// they do not block others.
#include <algorithm>
#include <stdexcept>

#include "schedule/scheduler_impl.h"

namespace batchllm {

// ---- A step ----

const TokenBatch &Scheduler::next_step() {
    Impl &impl = *impl_;
    if (impl.in_flight == 2) throw std::logic_error("scheduler: a third batch in flight");
    impl.budget = impl.options.step_tokens;
    impl.preemptions = 0;
    impl.scheduled_prefixes.clear();
    impl.stalled = false;
    const uint64_t running = impl.batches + 2 - static_cast<uint64_t>(impl.in_flight);
    impl.adapters.begin_batch(impl.batches + 2, running);
    impl.pictures.begin_batch(impl.batches + 2, running);
    impl.schedule_decode();
    impl.schedule_prompts();
    impl.schedule_proposed();
    BatchRecord &record = impl.record(impl.in_flight);
    impl.builder.build(impl.running, impl.scheduled_prefixes, &impl.forest, &impl.adapters,
                       impl.pictures, &record);
    record.counts.preemptions = impl.preemptions;
    record.counts.pages_used = impl.pool.used();
    impl.counts = record.counts;
    if (!impl.builder.batch().tokens.empty()) {
        impl.in_flight += 1;
        impl.batches += 1;
        impl.move_on();
    }
    return impl.builder.batch();
}

// The first queue.
void Scheduler::Impl::schedule_decode() {
    for (size_t i = 0; i < running.size(); ++i) { // shrinks from its end as requests are preempted
        Request *request = running[i];
        if (request->state != RequestState::decoding || budget == 0) continue;
        if (batchllm::held_back(*request)) {
            --budget; // reserved: requests admitted now must fit beside it in the next batch
        } else if (const int64_t got = grow_by_preemption(request); got > 0) {
            request->chunk = static_cast<int32_t>(got);
            budget -= got;
        } else if (running.size() == 1) {
            start_unshared(request);
        } // else it is the youngest: it waits, and keeps its pages until an older request needs
          // them
    }
}

// The second and third queue: own tokens if the prefix is complete, else the prefix's; after a
// prefix that this batch completes, also its requests' own tokens.
void Scheduler::Impl::schedule_prompts() {
    bool forecast_made = false;
    const int64_t later = budget - prompt_budget(&forecast_made);
    budget -= later;
    if (!running.empty() && running.back()->state == RequestState::prefilling && budget > 0)
        schedule_prompt(running.back());
    while (budget > 0 && !stalled) {
        Request *request = next_waiting();
        if (!request || !adapters.allows(request->adapter)) break;
        if (!running.empty()) {
            if (preemptions > 0 || (!pool.has_room() && !forest.has_idle())) break;
            if (options.max_requests > 0 &&
                static_cast<int64_t>(running.size()) >= options.max_requests)
                break;
            if (options.look_ahead) {
                if (!forecast_made) forecast_running();
                forecast_made = true;
                if (!forecast_allows(*request)) break;
            }
        }
        pop_waiting();
        admit(request);
        if (forecast_made)
            forecast.add(own_target(*request) + pool.page_tokens() / 2, outlook(*request));
        schedule_prompt(request);
    }
    budget += later;
}

void Scheduler::Impl::schedule_prompt(Request *request) {
    if (schedule_prefix(request)) schedule_own(request);
}

// Schedules the next tokens of the request's prefix and its ancestors. True if this batch completes
// them.
bool Scheduler::Impl::schedule_prefix(Request *request) {
    chain.clear();
    for (int32_t i = request->prefix; i >= 0 && !forest.at(i).ready(); i = forest.at(i).parent)
        chain.push_back(i);
    for (auto i = chain.rbegin(); i != chain.rend(); ++i) {
        ScheduledPrefix &node = forest.at(*i);
        const int64_t stored = int64_t{node.computed} + node.chunk;
        const auto begin = static_cast<int32_t>(node.start + stored);
        const int64_t wanted =
            with_pictures(*request, begin, std::min<int64_t>(node.length - stored, budget));
        if (wanted == 0) return false;
        const int64_t got = whole_pictures(*request, begin, grow(&node.pages, stored, wanted));
        if (got > 0) {
            if (node.chunk == 0) scheduled_prefixes.push_back(*i);
            node.chunk += static_cast<int32_t>(got);
            node.source = request;
            node.adapter = request->adapter;
            budget -= got;
        }
        if (got == 0 && finds_no_page()) {
            start_unshared(request);
            return false;
        }
        if (!node.ready()) return false;
    }
    return true;
}

void Scheduler::Impl::schedule_own(Request *request) {
    // Not held back: its tokens are known, or it decoded and restarts unshared in this batch.
    const int32_t begin = request->own_begin + request->computed;
    const int64_t wanted =
        with_pictures(*request, begin, std::min(own_target(*request) - request->computed, budget));
    if (wanted <= 0) return;
    const int64_t got =
        whole_pictures(*request, begin, grow(&request->pages, request->computed, wanted));
    request->chunk = static_cast<int32_t>(got);
    budget -= got;
    if (got == 0 && finds_no_page()) start_unshared(request);
}

// How many of the wanted tokens, which begin there, can be in this batch as far as pictures allow.
int64_t Scheduler::Impl::with_pictures(const Request &request, int32_t begin, int64_t wanted) {
    const int64_t whole = whole_pictures(request, begin, wanted);
    stalled = stalled || whole < wanted;
    for (const PromptPicture &picture : request.pictures) {
        if (picture.begin >= begin + whole) break;
        if (picture.begin + picture.length <= begin || pictures.take(picture.number)) continue;
        stalled = true;
        return std::max(0, picture.begin - begin);
    }
    return whole;
}

// The tokens from there on without those of a picture that would have to be in one batch and is cut.
int64_t Scheduler::Impl::whole_pictures(const Request &request, int32_t begin,
                                        int64_t tokens) const {
    if (!options.whole_pictures) return tokens;
    for (const PromptPicture &picture : request.pictures) {
        if (picture.begin >= begin + tokens) break;
        if (picture.begin + picture.length > begin + tokens) {
            return std::max(0, picture.begin - begin);
        }
    }
    return tokens;
}

// What is left of a step without prompts: proposed tokens, on pages that are free even if each
// request takes another column.
void Scheduler::Impl::schedule_proposed() {
    proposes = false;
    if (!options.propose || preemptions > 0 || !scheduled_prefixes.empty()) return;
    decoding.clear();
    for (Request *request : running) {
        if (request->chunk == 0) continue;
        if (request->state != RequestState::decoding) return;
        if (request->chunk == 1) decoding.push_back(request);
    }
    if (decoding.empty()) return;
    proposes = proposes_later = options.propose(decoding);
    int64_t spare = pool.free() / pool.groups() - static_cast<int64_t>(running.size());
    for (Request *request : decoding) {
        const int64_t stored = int64_t{request->computed} + request->chunk;
        const int64_t most =
            std::min<int64_t>(budget, request->max_tokens - output_length(*request) - 1);
        int64_t wanted = std::min(static_cast<int64_t>(request->proposed.size()), most);
        if (request->unknown > 0) wanted = 0;
        const int64_t columns = pages_for(stored + wanted, pool.page_tokens());
        for (; spare > 0 && request->pages.columns < columns; --spare)
            if (!pool.take(&request->pages)) break;
        const int64_t room = int64_t{request->pages.columns} * pool.page_tokens() - stored;
        wanted = std::clamp<int64_t>(wanted, 0, std::max<int64_t>(0, room));
        request->proposed.resize(static_cast<size_t>(wanted));
        request->chunk += static_cast<int32_t>(wanted);
        budget -= wanted;
    }
}

// Whether a request that got no page for its prompt would not get one in the next step either. If
// windows move on, what this step computes for its prefix may release pages.
bool Scheduler::Impl::finds_no_page() const {
    return running.size() == 1 && (!pool.slides() || budget == options.step_tokens);
}

// Takes pages for more tokens of a node. Returns how many of them there is room for.
int64_t Scheduler::Impl::grow(PageTable *pages, int64_t stored, int64_t tokens) {
    const int64_t wanted = pages_for(stored + tokens, pool.page_tokens());
    while (pages->columns < wanted)
        if (!pool.take(pages) && !forest.evict_idle()) break;
    return std::min(tokens, int64_t{pages->columns} * pool.page_tokens() - stored);
}

// Makes room for the request's decode tokens; for the first of them by preempting younger requests
// if necessary. There is usually one; there are several if the runtime knew some without sampling.
int64_t Scheduler::Impl::grow_by_preemption(Request *request) {
    const int64_t wanted = std::min(own_target(*request) - request->computed, budget);
    while (true) {
        const int64_t got = grow(&request->pages, request->computed, wanted);
        if (got > 0 || running.back() == request) return got;
        preempt_youngest();
    }
}

// The batch is in flight: its tokens count as stored from now on.
void Scheduler::Impl::move_on() {
    held_back = 0;
    for (const int32_t prefix : scheduled_prefixes) forest.finish_chunk(prefix);
    scheduled_prefixes.clear();
    size_t kept = 0;
    for (Request *request : running) {
        if (request->chunk == 0 || !count_chunk(request)) {
            running[kept++] = request;
            continue;
        }
        leave(request);
        forget(request);
        request->state = RequestState::ending;
        ++ending;
    }
    running.resize(kept);
}

// True if nothing is left to compute for the request.
bool Scheduler::Impl::count_chunk(Request *request) {
    const int64_t left = own_prompt_left(*request);
    request->computed += request->chunk;
    request->chunk = 0;
    request->drafted = static_cast<int32_t>(request->proposed.size());
    request->proposed.clear();
    const int32_t certain = request->computed - request->drafted; // the next token may be there
    pool.slide(&request->pages, certain);
    request->highest = std::max(request->highest, certain);
    if (!std::exchange(request->started, true)) started_tokens += request->logical_tokens;
    own_tokens_left -= left - own_prompt_left(*request);
    if (request->task != Task::generate) {
        const int32_t end = request->own_begin + request->computed;
        request->taken =
            std::max(request->taken, end - request->prompt.length + request->wanted_positions);
        return request->taken == request->wanted_positions;
    }
    request->taken = std::max(request->taken, request->own_begin + request->computed);
    if (request->computed < own_target(*request)) return false;
    request->state = RequestState::decoding; // it will sample
    request->unknown += 1;
    if (output_length(*request) == request->max_tokens) return true;
    held_back += batchllm::held_back(*request);
    return false;
}

// ---- Admission and preemption ----

Request *Scheduler::Impl::next_waiting() {
    if (!preempted.empty()) return preempted.back();
    while (!queue.empty() && !queue.front()) {
        queue.pop_front();
        ++first_place;
    }
    return queue.empty() ? nullptr : queue.front();
}

void Scheduler::Impl::pop_waiting() {
    --waiting;
    if (!preempted.empty()) {
        preempted.pop_back();
        return;
    }
    queue.front()->place = -1;
    queue.pop_front();
    ++first_place;
}

Outlook Scheduler::Impl::outlook(const Request &request) const {
    return lengths.outlook(request.max_tokens, output_length(request), request.preemptions > 0);
}

// Prompts count in full from the start, and each request's partly filled last page as half a page.
void Scheduler::Impl::forecast_running() {
    lengths.update();
    forecast.clear(longest);
    for (const Request *request : running)
        forecast.add(own_target(*request) + pool.page_tokens() / 2, outlook(*request));
}

// Unlike pages, all slots are taken at the start.
bool Scheduler::Impl::slots_allow(const Request &request) const {
    if (!pool.has_states()) return true;
    const int64_t prefixes =
        forest.live_prefixes() + (request.prefix < 0 ? 0 : forest.prefixes_to_hold(request.prefix));
    return prefixes + static_cast<int64_t>(running.size()) + 1 <= pool.states().total();
}

bool Scheduler::Impl::forecast_allows(const Request &request) const {
    if (!slots_allow(request)) return false;
    const int64_t prefix_pages =
        forest.live_pages() + (request.prefix < 0 ? 0 : forest.pages_to_hold(request.prefix));
    const int64_t slots =
        forecast.peak_with(own_target(request) + pool.page_tokens() / 2, outlook(request));
    return prefix_pages + pages_for(slots, pool.page_tokens()) + pages_of_chunks(request) <=
           pool.total();
}

// What groups with windows need beyond those windows while a prompt is computed: the tokens of a
// step.
int64_t Scheduler::Impl::pages_of_chunks(const Request &request) const {
    if (!pool.slides()) return 0;
    int64_t longest_node = own_target(request);
    for (int32_t i = request.prefix; i >= 0 && !forest.at(i).ready(); i = forest.at(i).parent)
        longest_node = std::max<int64_t>(longest_node, forest.at(i).length);
    int64_t pages = 0;
    for (const KvWindow &kind : pool.windows()) {
        if (kind.window == 0) continue;
        const int64_t beyond =
            std::clamp<int64_t>(longest_node - kind.window, 0, options.step_tokens);
        pages += kind.groups * pages_for(beyond, pool.page_tokens());
    }
    return pages;
}

void Scheduler::Impl::admit(Request *request) {
    waiting_output -= request->max_tokens;
    request->state = RequestState::prefilling;
    adapters.hold(request->adapter);
    if (request->prefix >= 0) forest.hold(request->prefix);
    running.push_back(request);
}

// Takes the youngest request's pages before any of its tokens is scheduled. It becomes the first to
// be admitted.
void Scheduler::Impl::preempt_youngest() {
    Request *request = running.back();
    running.pop_back();
    leave(request);
    request->state = RequestState::waiting;
    request->preemptions += 1;
    preempted.push_back(request);
    ++waiting;
    waiting_output += request->max_tokens;
    ++preemptions;
}

// For a request that is alone and finds no page. The pool has room for the request, but not also
// for the slots that the last pages of its prefixes leave empty.
void Scheduler::Impl::start_unshared(Request *request) {
    if (request->prefix < 0) throw std::logic_error("scheduler: a request that fits found no page");
    preempt_youngest();
    const int64_t left = own_prompt_left(*request);
    request->highest += forest.once_computed(request->prefix);
    forest.remove_pending(request->prefix);
    request->own_begin = 0;
    request->prefix = -1;
    own_tokens_left += own_prompt_left(*request) - left;
}

// ---- The rest of the interface ----

Scheduler::Scheduler(const SchedulerOptions &options) : impl_(std::make_unique<Impl>(options)) {}
Scheduler::~Scheduler() = default;

int64_t Scheduler::longest_request() const {
    const int64_t stored = impl_->pool.most_tokens(); // INT64_MAX: as many as there are
    return stored == INT64_MAX ? stored : stored + 1;
}

bool Scheduler::has_room_for_picture(int64_t stored, int32_t length) const {
    return impl_->has_room_for_picture(stored, length);
}

const StepCounts &Scheduler::counts() const { return impl_->counts; }
AdapterSlots &Scheduler::adapters() { return impl_->adapters; }
const AdapterSlots &Scheduler::adapters() const { return impl_->adapters; }
PictureSlots &Scheduler::pictures() { return impl_->pictures; }
const PictureSlots &Scheduler::pictures() const { return impl_->pictures; }
int32_t Scheduler::in_flight() const { return impl_->in_flight; }
const BatchRecord &Scheduler::oldest() const { return impl_->record(0); }
const BatchRecord &Scheduler::newest() const { return impl_->record(impl_->in_flight - 1); }
int64_t Scheduler::held_back() const { return impl_->held_back; }
bool Scheduler::proposes() const { return impl_->proposes; }
int64_t Scheduler::waiting() const { return impl_->waiting; }
int64_t Scheduler::running() const {
    return static_cast<int64_t>(impl_->running.size()) + impl_->ending;
}
int64_t Scheduler::pages_used() const { return impl_->pool.used(); }
int64_t Scheduler::pages_peak() const { return impl_->pool.peak(); }
int64_t Scheduler::started_tokens() const { return impl_->started_tokens; }
int64_t Scheduler::states_used() const { return impl_->pool.states().used(); }
int64_t Scheduler::states_peak() const { return impl_->pool.states().peak(); }
int64_t Scheduler::prompt_tokens_left() const {
    int64_t tokens = impl_->own_tokens_left + impl_->forest.tokens_left();
    for (int32_t i = 0; i < impl_->in_flight; ++i) tokens += impl_->record(i).counts.prompt_tokens;
    return tokens;
}
double Scheduler::expected_length_share() const { return impl_->lengths.share(); }

} // namespace batchllm
