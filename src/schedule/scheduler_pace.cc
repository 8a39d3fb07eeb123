// How many prompt tokens a step computes while more requests wait than fit the pool at once.
//
// If all of them fit, prompts come first: then all requests decode together, in the fewest steps. If
// they do not, requests that begin together also end together, and so do those after them: most steps
// would only decode, with few tokens for all the weights that they read, and the last of these waves
// may be nearly empty. So prompts are then spread over the steps in which requests decode: a step
// computes as many of their tokens as keep the pool full if requests begin, and end, evenly over time.
#include <algorithm>

#include "schedule/scheduler_impl.h"

namespace batchllm {
namespace {

// How often to look whether proposed tokens would pay, in batches.
constexpr uint64_t look_at_drafts = 16;

// Requests that fit the pool so many times begin in waves, since the last of these is full enough: 40 % of
// two, 60 % of three, up to a little more than they hold, as the count is not exact. By the jobs of
// docs/lab/engine.md, "More rows than fit".
struct Waves {
    double more_than, less_than;
    bool has(double waves) const { return waves > more_than && waves < less_than; }
};
constexpr Waves two_waves{1.4, 2.05}, three_waves{2.6, 3.05};

} // namespace

// What is left of the budget for prompts in this step. *forecast_made: of the running requests.
int64_t Scheduler::Impl::prompt_budget(bool *forecast_made) {
    const int64_t decode = options.step_tokens - budget;
    const int64_t least = std::max<int64_t>(0, options.paced_tokens - decode);
    // A picture that has to be in one batch may need all of it.
    if (decode == 0 || budget <= least || waiting == 0 || options.whole_pictures) return budget;
    if (!options.look_ahead || drafts_pay()) return budget;
    forecast_running();
    *forecast_made = true;

    const int64_t max_tokens = waiting_output / waiting; // on average
    const int64_t rows = waiting + (max_tokens > 0 ? coming_output / max_tokens : 0);
    const bool begun = running.back()->state == RequestState::prefilling;
    int64_t own = own_tokens_left - (begun ? own_prompt_left(*running.back()) : 0) + coming_prompt;
    for (const Request *request : preempted)
        own += own_target(*request) - own_prompt_left(*request);
    const int64_t prefixes = forest.tokens_left();
    const int64_t own_slots = own / rows + pool.page_tokens() / 2;
    const Outlook outlook = lengths.outlook(static_cast<int32_t>(max_tokens), 0, false);
    const int64_t most = most_running(); // requests, whatever their pages
    const int64_t slots = pool.total() * pool.page_tokens();
    if (static_cast<int64_t>(running.size()) + rows <= most &&
        forecast.peak_with(own_slots, outlook, rows) + rows * forecast.slots(prefixes / rows) +
                forest.live_pages() * pool.page_tokens() <=
            slots) {
        return budget;
    }
    // The prefixes that running requests continue are released as they end, and those to come take their
    // place: rows hold their shares of these. Only what is held beyond that has no share in `prompt`.
    const int64_t held = std::max<int64_t>(0, forest.live_pages() * pool.page_tokens() -
                                                  static_cast<int64_t>(running.size()) *
                                                      forecast.slots(prefixes / rows));
    const int64_t left = std::max<int64_t>(pool.page_tokens(), slots - held);
    const double prompt = static_cast<double>(own + prefixes) / static_cast<double>(rows);
    double generated = 0;
    for (const int64_t steps : outlook) generated += static_cast<double>(steps) / outlook_points;
    generated = std::max(1.0, generated);
    const int64_t each = forecast.slots(static_cast<int64_t>(prompt + generated / 2) +
                                        pool.page_tokens() / 2); // on average
    const auto fit = [&](int64_t slots_each) {
        return std::min(static_cast<double>(left) / static_cast<double>(slots_each),
                        static_cast<double>(most));
    };
    const double at_once = fit(each);
    if (at_once < static_cast<double>(options.paced_requests)) return budget;
    // Two or three waves of which the last is full enough are better than a tail of requests that end
    // one by one. Once many run, what has been decided holds.
    if (2 * static_cast<double>(running.size()) < at_once) {
        const int64_t at_end =
            forecast.slots(static_cast<int64_t>(prompt + generated) + pool.page_tokens() / 2);
        const double waves =
            static_cast<double>(static_cast<int64_t>(running.size()) + rows) / fit(at_end);
        spreads = !two_waves.has(waves) && !three_waves.has(waves);
    }
    if (!spreads) return budget;
    const auto pace = static_cast<int64_t>(prompt * at_once / generated);
    return std::min(budget, std::max({int64_t{1}, least, pace}));
}

// The most requests that may run, as far as something other than pages limits them.
int64_t Scheduler::Impl::most_running() const {
    int64_t most = options.max_requests > 0 ? options.max_requests : INT64_MAX / 2;
    if (pool.has_states()) most = std::min(most, pool.states().total() - forest.live_prefixes());
    return std::max<int64_t>(1, most);
}

// A step with prompts computes no proposed tokens, so where these pay, prompts are not spread.
bool Scheduler::Impl::drafts_pay() {
    if (!options.propose || batches % look_at_drafts != 0) return proposes_later;
    decoding.clear();
    for (Request *request : running) {
        if (request->state == RequestState::decoding && request->chunk == 1)
            decoding.push_back(request);
    }
    proposes_later = !decoding.empty() && options.propose(decoding);
    for (Request *request : decoding) request->proposed.clear();
    return proposes_later;
}

} // namespace batchllm
