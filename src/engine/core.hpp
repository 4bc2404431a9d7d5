// The engine behind the public class: submits, matches, advances and ends operations.
//
// There is no fixed thread of execution. Whoever waits for an operation drives all of them (`progress`, under one
// lock); the engine's own thread does it only for operations that nobody waits for. So a blocking call made while
// nothing else is under way never changes threads.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/census.hpp"
#include "collective/chunks.hpp"
#include "collective/relay_pass.hpp"
#include "engine/operation.hpp"
#include "engine/patience.hpp"
#include "engine/planning.hpp"
#include "engine/request.hpp"
#include "engine/served.hpp"
#include "engine/shared_block.hpp"
#include "engine/survivors.hpp"
#include "fusion/step_end.hpp"
#include "lockstep/engine.hpp"
#include "lockstep/options.hpp"
#include "negotiation/groups.hpp"
#include "negotiation/matcher.hpp"
#include "trace/recorder.hpp"
#include "transport/transport.hpp"

namespace lockstep::engine {

/// A simple blocking call of the world, without a name, as the short cut takes it.
struct ExpressCall {
  collective::Kind kind = collective::Kind::barrier;  ///< barrier, broadcast or all-reduce
  const TensorView* input = nullptr;
  const TensorView* output = nullptr;
  ReduceOp op = ReduceOp::sum;
  int root = -1;
  bool by_contributors = false;
};

struct Roster;

class Core {
 public:
  using Clock = std::chrono::steady_clock;
  using OperationPtr = std::shared_ptr<Operation>;

  /// Who drives operations that nobody waits for: a thread of the engine's own, or the owner, who calls `tick`.
  enum class Drive { own_thread, owner };

  /// Returns when the engine's thread runs and this rank counts as alive.
  Core(const Options& options, std::unique_ptr<transport::Transport> transport, Drive drive = Drive::own_thread);
  ~Core();

  const Options& options() const { return options_; }
  trace::Recorder& recorder() { return recorder_; }
  transport::Transport& transport() { return *transport_; }
  ServedAllocations& served() { return served_; }
  LentBlocks& lent_blocks() { return lent_blocks_; }

  /// Throws Error(invalid_argument) for a request that makes no sense, and the verdict once the world has ended.
  OperationPtr submit(Request request, bool background);

  /// An all-reduce in the background. Inside a step it may travel in a bucket (buckets.cpp).
  OperationPtr submit_all_reduce(const Reduce& wanted);

  /// Several operations, all of them or, when one is refused, none.
  std::vector<OperationPtr> submit_together(std::vector<Request> requests, bool background = true);

  /// The same for all-reduces whose results nobody asks for one by one: small ones may travel as one (packing.hpp).
  std::vector<OperationPtr> submit_packed(std::vector<Request> requests, bool background);

  /// Submits, waits and throws the operation's error: a blocking call.
  void run_to_end(Request request);

  /// The same by the short cut (express.cpp). False, and nothing has happened, when the call is not for it. With `rest`
  /// it does not wait where it would have to sleep: what is left is there, in the background.
  bool run_express(const ExpressCall& call, OperationPtr* rest = nullptr);

  /// Drives the engine until the operation has ended (true) or `limit` has passed (false). Does not throw its error.
  /// With `in_slices` the limit only ends a slice: the caller does nothing but to wait on, until it is true.
  bool wait(Operation& operation, std::optional<Clock::time_point> limit = std::nullopt, bool in_slices = false);

  /// Throws the operation's error if it has failed.
  static void check(const Operation& operation);

  /// Where the ranks of this world find each other again (connect_tcp.hpp); null on one host.
  void keep_roster(std::shared_ptr<const Roster> roster) { roster_ = std::move(roster); }
  const std::shared_ptr<const Roster>& roster() const { return roster_; }

  /// How this rank finds out that nothing in its process can go on by itself; before anything else is done with it.
  void use_census(Census census) { census_ = std::move(census); }

  /// Makes a group of ranks that this rank belongs to. Does not wait for the other members.
  negotiation::MembersPtr make_group(std::vector<int> ranks);

  /// exclusive: only operations that are submitted as `of_step` belong to it.
  void begin_step(bool exclusive = false);
  std::uint64_t end_step();

  void abort(const std::string& reason);

  /// Of all that are left, the same (survivors.hpp). Ends the world if that has not happened.
  Agreement agree();

  /// Makes the engine of this rank in a world of `members`. `round` tells attempts apart, alike on all of them.
  using Meet = std::function<std::shared_ptr<Core>(const Agreement& members, std::uint32_t round)>;

  /// Agrees, meets, and agrees that all have met; again without those that died meanwhile. Throws Error(unavailable)
  /// when the living cannot meet, and Error(peer_lost) when they have gone on without this rank.
  std::shared_ptr<Core> continue_with_survivors(const Meet& meet);

  /// What the engine's own thread does again and again, once. For Drive::owner.
  void tick();

  /// Ends pending operations with an error and leaves the world. Nothing can be submitted afterwards.
  void stop();

 private:
  RoundResult next_round(bool vote);
  void end_for_survivors();
  void run();
  void run_background(std::unique_lock<std::mutex>& lock);

  // How often each name was used since the group's last join. Ranks that had joined have missed some, so counting
  // starts again when all have.
  struct Series {
    std::uint64_t joins = 0;  // that all ranks of the group have completed
    std::uint64_t unnamed = 0;
    std::unordered_map<NameKey, std::uint64_t> uses;
    fusion::Step step = fusion::kNoStep;  // that the next counts are of
    std::unordered_map<NameKey, std::uint64_t> uses_in_step;
  };

  // A wait without limit, and how it goes on (standstill.cpp).
  struct Wait {
    const Operation* operation = nullptr;
    pid_t thread = 0;
    std::uint64_t number = 0;  // 0: it is not yet counted among those that last
    Clock::time_point since{};
    std::uint64_t rounds = 0;  // how often the thread has let go of every lock
    std::uint64_t rounds_before = 0;
    Clock::time_point left{};  // when it went, for a moment
  };
  class Waiter : public Wait {
   public:
    Waiter(Core& core, const Operation& operation);
    ~Waiter();
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

    // The next slice of a wait goes on where the last ended.
    void resume();
    void leave(bool for_a_moment);

   private:
    Core& core_;
  };
  Patience patience_of(const Waiter& waiter);
  bool wait_on(Waiter& waiter, Operation& operation, std::optional<Clock::time_point> limit, bool in_slices);

  // All below: REQUIRES mutex_.
  OperationPtr submit_locked(Request request, bool background);
  OperationPtr prepare(Request request, bool background);
  void check_together(std::vector<Request>& requests);
  void tell_choice();
  void announce(const OperationPtr& operation);
  void enter(const OperationPtr& operation);
  void record_submission(Operation& operation);
  bool is_forked_copy() const;
  bool have_ended_before(std::uint64_t number) const;
  bool make_offer(const ExpressCall& call, std::uint64_t number);
  bool await_offers(const ExpressCall& call, std::uint64_t number, trace::Span& span);
  void record_express(const ExpressCall& call, std::uint64_t number, trace::Span& span);
  bool comes_the_ordinary_way(std::uint64_t number);
  bool carry_out(const ExpressCall& call, std::uint64_t number);
  transport::Board& own_board() const { return *boards_[static_cast<std::size_t>(options_.rank)]; }
  void tell_of_offer(std::uint64_t number);
  bool is_last_to_offer(std::uint64_t number);
  void ring_others();
  std::optional<transport::OfferedPlaces> places_of(const ExpressCall& call);
  bool reduce_at_places(const ExpressCall& call, std::uint64_t number);
  bool reduce_in_place(const ExpressCall& call);
  bool reduce_through_relays(const ExpressCall& call);
  OperationPtr adopt(const ExpressCall& call, std::uint64_t number);
  transport::Notice notice_of(const transport::Offer& offer, std::uint64_t number) const;
  void take_offers_of(Operation& operation);
  bool take_offers(int peer);
  bool take_offer(int peer, std::uint64_t number);
  bool progress();
  bool take_notices();
  void take_notice(int peer, const transport::NoticeRef& notice);
  bool post_queued();
  void begin_if_complete(std::uint64_t id);
  void begin(const OperationPtr& operation, const negotiation::Gathering& gathering);
  collective::Call call_for(Operation& operation, const negotiation::Gathering& gathering);
  void note_join(int rank, const negotiation::MembersPtr& members);
  void end_join(Operation& operation, const negotiation::Gathering& gathering);
  bool has_joined(negotiation::GroupId group, int rank) const;
  bool somebody_has_joined(negotiation::GroupId group) const;
  // Steps (steps.cpp).
  OperationPtr announce_end(const fusion::StepEnd& end);
  void note_end(int rank, const transport::NoticeHead& head);
  void note_company(const Operation& operation, const negotiation::Gathering& gathering);
  void refuse_strangers();
  bool belongs_to_step(bool of_step) const;
  void begin_those_of_step(fusion::Step step);
  bool is_late(const transport::NoticeHead& notice);
  bool goes_without(const Operation& operation, int rank) const;
  bool nothing_under_way() const;

  // Plans (planning.cpp).
  void learn_from(const OperationPtr& operation);
  void begin_planned_step();
  fusion::StepEnd end_planned_step();
  void settle_step(const Operation& end, const negotiation::Gathering& gathering);
  void forget_plans();

  // Buckets (buckets.cpp).
  OperationPtr submit_planned(const Reduce& wanted);
  bool find_place(PlanAtWork& work, PlanAtWork::Bucket& bucket, std::size_t entry, const Reduce& wanted);
  OperationPtr renew(PlanAtWork::Member& member, const fusion::Entry& entry, const Reduce& wanted);
  OperationPtr bucket_notice(const PlanAtWork::Bucket& bucket);
  void post_bucket(PlanAtWork::Bucket& bucket);
  void post_filling_buckets();
  void dissolve(PlanAtWork::Bucket& bucket, bool tell);
  void withdraw(Operation& bucket);
  void go_alone(PlanAtWork::Member& member);
  void dissolve_bucket_under(Operation& operation);
  void dissolve_if_awaited(const Operation& operation);
  bool will_dissolve() const;
  void look_after_buckets(bool waiting);
  void take_bucket_notice(int peer, const transport::NoticeRef& notice);
  std::unique_ptr<collective::Algorithm> bucket_reduce(const Operation& operation,
                                                       const negotiation::Gathering& gathering);
  const PlanAtWork::Member* member_of(NameKey key, const std::string& name) const;
  std::uint64_t uses_in_bucket(const Operation& operation) const;
  bool owes(const Operation& operation, int rank) const;
  bool may_still_submit(std::uint64_t id);
  template <class Visit>
  void for_each_member(const Operation& bucket, const Visit& visit);
  void free_memory(PlanAtWork::Bucket& bucket);
  void finish_members(const Operation& operation);
  void fail_members(const Operation& operation, const Error& error);
  void fail_filling_buckets(const Error& error);
  void record_waiting(Operation& operation, std::span<const int> missing);
  std::string text_of_bucket(const Operation& bucket) const;

  void wake_thread();

  void finish(const OperationPtr& operation);
  // The pointer must not be one of the containers' own: ending the operation takes it out of them.
  void fail(const OperationPtr& operation, const Error& error);
  void give_up(const OperationPtr& operation, const Error& error);
  void close(Operation& operation);
  void forget_gathering(std::uint64_t id);
  void look_after_peers();
  bool may_end_without(int peer);
  void lose(int peer, transport::Health health);
  void fail_what_needs(int peer);
  void report_stalls();

  // Deadlocks (standstill.cpp).
  void stand_still(Waiter& waiter);
  bool is_deadlocked();
  bool stands_still();
  std::optional<std::uint64_t> rest_of_process();
  bool all_went_round() const;
  void declare();
  std::string text_of_waits() const;
  std::string text_of_deadlock();
  void end_world(const transport::Verdict& verdict);
  void refuse_if_unusable() const;
  [[noreturn]] static void refuse_name_twice(const std::string& name);
  [[noreturn]] static void refuse_name_in_flight(const std::string& name);
  void assign_identity(Operation& operation);
  bool is_in_flight(NameKey key, const std::string& name) const;
  std::string text_of(const Operation& operation) const;

  const Options options_;
  const std::unique_ptr<transport::Transport> transport_;
  const bool crowded_;
  const bool expressive_;  // the short cut is open
  const Patience patience_;
  const unsigned fork_generation_;

  ServedAllocations served_;  // goes before the transport
  LentBlocks lent_blocks_;
  std::shared_ptr<const Roster> roster_;  // set once, before anybody else uses the engine
  trace::Recorder recorder_;              // records under mutex_; its parts synchronise themselves

  std::mutex mutex_;
  std::condition_variable wake_;  // the engine's thread: something to do, or stop
  // All below is protected by mutex_.
  Contention contention_;
  std::size_t told_trip_ = 0;  // what was known of the network when the choice of algorithms was last told
  negotiation::Groups groups_;
  negotiation::Matcher matcher_;
  // How often each rank has joined. Who has more often than this rank has seen all join takes no part until all have.
  std::unordered_map<negotiation::GroupId, std::map<int, std::uint64_t>> joins_;
  std::unordered_map<std::uint64_t, OperationPtr> pending_;  // by id
  std::deque<OperationPtr> queued_;                          // not yet announced: the log is full
  std::vector<OperationPtr> running_;                        // everybody has announced them
  std::unordered_map<negotiation::GroupId, Series> series_;
  Series& world_series_ = series_[negotiation::kWorld];
  std::vector<std::uint64_t> ended_before_;  // by rank: it has ended every operation before the one of this number
  std::vector<std::uint64_t> offers_seen_;   // by rank: stamp of the newest offer looked at
  std::vector<transport::Board*> boards_;    // by rank, where the short cut is open
  std::array<std::uint64_t, transport::Board::kOffers> express_summaries_{};  // of this rank's own offers
  bool reach_known_ = false;  // ranks have tried whether they reach each other's private memory
  std::vector<const std::byte*> express_leaves_;
  std::vector<std::byte*> express_outputs_;
  std::vector<collective::Party> express_parties_;
  std::vector<collective::Chunks::Words> express_words_;
  collective::RelayPass express_pass_;
  void* express_relay_ = nullptr;  // this rank's, made when it is first needed
  std::unordered_set<NameKey> names_in_flight_;
  std::size_t background_ = 0;  // pending operations that the engine's thread must see to
  bool idle_ = false;           // that thread sleeps until it is woken, or for a while
  std::optional<Error> ended_;  // why nothing can be submitted any more
  std::vector<OperationPtr> step_operations_;
  bool in_step_ = false;
  bool exclusive_ = false;                  // the step has only what was submitted as a part of it
  fusion::Step step_ = fusion::kNoStep;     // the last one begun
  std::uint64_t begun_since_join_ = 0;      // steps, since the world's last join
  std::uint64_t steps_ = 0;                 // completed
  std::vector<fusion::Step> ended_ranks_;   // by rank: the last step in which it will submit nothing more
  fusion::Step settled_ = fusion::kNoStep;  // the last one of which this rank has nothing under way
  // How many named operations of the world each rank had in its last two steps, and in this rank's present step, who
  // took part in any of them: ranks that have nothing in common are not in the same step of the program.
  std::vector<std::array<std::uint64_t, 2>> ended_with_;
  std::uint64_t named_in_step_ = 0;
  std::vector<bool> met_in_step_;
  Planning planning_;
  OperationPtr last_end_;  // announces the end of this rank's last step
  Clock::time_point looked_after_{};
  std::map<int, Clock::time_point> deaths_;  // when each was noticed
  std::vector<Waiter*> waiters_;
  std::vector<Wait> absent_;    // between two slices
  std::uint64_t waits_ = 0;     // so far
  std::uint64_t activity_ = 0;  // counts whatever changes how things stand: notices, submissions, ends
  Census census_;
  transport::Standstill standstill_;  // as declared last
  std::uint64_t versions_ = 0;        // given so far
  std::uint64_t rest_ = 0;            // what the version stands for
  Clock::time_point stood_still_{};   // the last look
  pid_t own_thread_ = 0;
  std::uint64_t own_rounds_ = 0;
  std::uint64_t own_rounds_before_ = 0;
  std::optional<std::uint64_t> transport_rounds_before_;
  bool arrived_ = false;
  bool stopping_ = false;

  std::mutex survivors_mutex_;  // taken before mutex_
  // Protected by survivors_mutex_.
  std::uint32_t round_ = 0;
  std::optional<Agreement> agreed_;
  std::optional<std::uint64_t> steps_at_end_;

  std::thread thread_;  // none when the owner drives
};

}  // namespace lockstep::engine
