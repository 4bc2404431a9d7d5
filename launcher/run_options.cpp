#include "run_options.hpp"

#include <fmt/core.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <charconv>
#include <map>
#include <memory>

#include "config_file.hpp"
#include "environment.hpp"
#include "foreign_options.hpp"
#include "lockstep/version.hpp"

namespace lockstep::launcher {

namespace {

constexpr const char* kFooter = R"(
Everything after PROGRAM belongs to it, flags included.
A PROGRAM that ends in .py and is not an executable script is run with python3.

Output: lines of the ranks' stdout come out on stdout, those of stderr on stderr, whole and with "[rank] " before
them. On a terminal the rank is coloured (NO_COLOR switches that off) and a progress bar of rank 0 stays in place.
Input: rank 0 reads the standard input unless that is a terminal; the other ranks read nothing.
Ctrl-C stops the job, a second one at once; Ctrl-\ shows where every rank is. When a rank fails the others are stopped,
and the last lines say who failed first, and why.

Options of torchrun and horovodrun are understood, with - or _ between words; one that has nothing to choose here is
said to have no effect. A config file is TOML with the long options as keys, and settings for the ranks in the table
[environment]; what stands on the command line counts more.

Hosts are reached by ssh, which must not ask for a password, and have the same version of Lockstep and the same folder.
Their ranks get the environment of this command, without what describes this machine or session, and read no input.

Exit codes: 0 done; 1 the program failed; 2 the command cannot be run as given; 69 a machine lacks what the job needs,
or cannot be reached; 76 hosts have different versions of Lockstep; 130 after Ctrl-C; 143 after SIGTERM.

Examples:
  lockstep run -np 4 python train.py --epochs 3
  lockstep run -np 2 -m my_package.train
  lockstep run -np 2 ./my_program
  lockstep run -H alpha:2,beta:2 python train.py)";

constexpr const char* kUsage = "lockstep run -np N [OPTIONS] PROGRAM [ARGUMENTS...]";
constexpr int kMostProcesses = 4096;

/// CLI11 knows one-letter flags only, so these get their long names.
const std::map<std::string, std::string> kShort = {{"-np", "--num-proc"},
                                                   {"-hostfile", "--hostfile"},
                                                   {"-cb", "--check-build"},
                                                   {"-prefix-timestamp", "--prefix-timestamp"}};

const std::map<std::string, Binding> kBindings = {
    {"auto", Binding::automatic}, {"none", Binding::none}, {"node", Binding::node}, {"core", Binding::core}};

/// And torchrun's underscores become dashes.
/// Tokens of the user's program are rewritten too, which is harmless: they are taken from the original list.
std::string canonical(const std::string& argument) {
  const std::size_t name_end = std::min(argument.find('='), argument.size());
  const auto known = kShort.find(argument.substr(0, name_end));
  if (known != kShort.end()) return known->second + argument.substr(name_end);
  if (argument.rfind("--", 0) != 0) return argument;
  std::string result = argument;
  std::replace(result.begin(), result.begin() + static_cast<std::ptrdiff_t>(name_end), '_', '-');
  return result;
}

class RunFormatter : public CLI::Formatter {
  std::string make_usage(const CLI::App*, std::string) const override { return fmt::format("Usage: {}\n", kUsage); }
};

/// What a hidden option is called; the parser does not tell.
std::string long_name(const CLI::Option& option) { return "--" + option.get_lnames().front(); }

int parse_processes(const std::string& text) {
  if (text == "auto" || text == "cpu") return usable_cores();  // torchrun's words
  if (text == "gpu") {
    throw UsageError(
        "-np gpu: Lockstep runs on CPUs and does not count GPUs. Write the number of processes, or auto for one per "
        "core");
  }
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > kMostProcesses) {
    throw UsageError(
        fmt::format("-np {}: the number of processes must be a whole number from 1 to {}. For example: "
                    "lockstep run -np 2 python train.py",
                    text.empty() ? "''" : text, kMostProcesses));
  }
  return value;
}

/// One use of the parser: the options, what the parser puts in them, and the checks that follow.
class CommandLine {
 public:
  explicit CommandLine(const std::vector<std::string>& arguments);

  std::variant<RunOptions, HelpText> read();
  CommandText describe() const;

 private:
  struct Foreign {
    const ForeignOption* meaning;
    CLI::Option* option;
  };

  void add_own_options();
  void add_familiar_options();
  void take_program();
  void take_config_file();
  void take_familiar_options();
  void take_hosts();
  void check_nodes(std::size_t hosts) const;
  void note_unused_host_options();
  void finish();

  const std::vector<std::string>& arguments_;
  CLI::App app_;
  RunOptions options_;
  std::string processes_;
  std::string config_;
  std::string hosts_;
  std::string hostfile_;
  std::string nodes_;
  std::string node_rank_ = "0";
  double shutdown_seconds_ = 2.0;
  bool verbose_ = false;
  bool no_preload_ = false;
  bool show_version_ = false;
  std::vector<Foreign> foreign_;
};

CommandLine::CommandLine(const std::vector<std::string>& arguments)
    : arguments_(arguments),
      app_("Starts N processes of a program, on this machine or on several, as the ranks of one job.", "lockstep run") {
  app_.formatter(std::make_shared<RunFormatter>());
  app_.footer(kFooter);
  app_.prefix_command();
  add_own_options();
  add_familiar_options();
}

void CommandLine::add_own_options() {
  app_.add_option("-n,--num-proc,--nproc-per-node", processes_, "Number of processes; also written -np")
      ->type_name("N");
  app_.add_flag("-m,--module", options_.module, "PROGRAM is a Python module: python3 -m PROGRAM");
  app_.add_option("--output,--log-dir,--output-filename", options_.output_directory,
                  "Also keep each rank's output, as it was written, in DIR/rank.R/stdout and DIR/rank.R/stderr")
      ->type_name("DIR");
  app_.add_flag("--prefix-timestamp,--prefix-output-with-timestamp", options_.timestamps,
                "Show before each line of a rank when it came");
  app_.add_flag("-q,--quiet", options_.quiet, "Show only the output of the ranks, and errors");
  app_.add_flag("--json", options_.json,
                "For tools: standard output has one JSON object per line, for each line of output and each event");
  app_.add_option("--max-restarts", options_.max_restarts, "After a failure, start the whole job again, up to N times")
      ->type_name("N")
      ->check(CLI::Range(0, 1'000'000));
  app_.add_option("--bind", options_.binding,
                  "What a rank is bound to: core, node (of memory), none; auto: node where there are several")
      ->type_name("WHAT")
      ->transform(CLI::CheckedTransformer(kBindings).description(""));
  app_.add_option("-x,--env", options_.environment, "A variable for the ranks; may be given several times")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  app_.add_flag("--no-preload", no_preload_,
                "Put no library into LD_PRELOAD: gradients are then copied before ranks of a host reduce them");
  app_.add_option("--shutdown-timeout", shutdown_seconds_,
                  "Seconds a rank that was asked to stop has before it is killed (2)")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 86400.0));
  app_.add_option("-H,--hosts", hosts_, "Start the ranks on these hosts by ssh, so many on each: a:2,b:2")
      ->type_name("HOSTS");
  app_.add_option("--hostfile", hostfile_, "The same from a file with a line per host: a slots=2")->type_name("FILE");
  app_.add_option("-p,--ssh-port", options_.ssh.port, "Port of ssh on the hosts")
      ->type_name("PORT")
      ->check(CLI::Range(1, 65535));
  app_.add_option("-i,--ssh-identity-file", options_.ssh.identity, "Key with which ssh proves who you are")
      ->type_name("FILE");
  app_.add_option("--config-file", config_, "Read options from this TOML file")->type_name("FILE");
  app_.add_flag("--dry-run", options_.dry_run, "Show what would be started, and start nothing");
}

void CommandLine::add_familiar_options() {
  const char* hidden = "";
  app_.add_flag("--check-build", options_.check_build)->group(hidden);
  app_.add_option("--call", options_.call_folder)->group(hidden);  // what lockstep.run of Python gives
  app_.add_flag("--verbose", verbose_)->group(hidden);
  app_.add_flag("-v,--version", show_version_)->group(hidden);
  app_.add_option("--nnodes", nodes_)->group(hidden);
  app_.add_option("--node-rank", node_rank_)->group(hidden);
  app_.add_option("--master-addr", options_.master_address)->group(hidden);
  app_.add_option("--master-port", options_.master_port)->check(CLI::Range(1, 65535))->group(hidden);
  for (const ForeignOption& meaning : foreign_options()) {
    CLI::Option* option = meaning.takes_value ? app_.add_option(meaning.name) : app_.add_flag(meaning.name);
    foreign_.push_back({&meaning, option->group(hidden)});
  }
}

std::variant<RunOptions, HelpText> CommandLine::read() {
  std::vector<std::string> reversed;
  for (auto it = arguments_.rbegin(); it != arguments_.rend(); ++it) reversed.push_back(canonical(*it));
  try {
    app_.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    return HelpText{app_.help()};
  } catch (const CLI::ParseError& error) {
    throw UsageError(fmt::format("{}. See: lockstep run --help", error.what()));
  }
  if (show_version_) return HelpText{fmt::format("lockstep {}\n", version())};
  if (options_.check_build) return options_;
  take_program();
  if (!config_.empty()) take_config_file();
  take_familiar_options();
  finish();
  return options_;
}

CommandText CommandLine::describe() const {
  CommandText text{.name = "run",
                   .usage = kUsage,
                   .description = app_.get_description(),
                   .options = option_texts(app_),
                   .notes = kFooter,
                   .takes_program = true};
  for (OptionText& option : text.options) {
    for (const auto& [word, name] : kShort) {
      const auto at = std::find(option.names.begin(), option.names.end(), name);
      if (at != option.names.end()) option.names.insert(at, word);
    }
    if (option.names.front() != "--bind") continue;
    for (const auto& [word, binding] : kBindings) option.choices.push_back(word);
  }
  return text;
}

/// The parser leaves the program and all that follows it, but also flags that it does not know.
void CommandLine::take_program() {
  const std::vector<std::string> remaining = app_.remaining();
  options_.command.assign(arguments_.end() - static_cast<std::ptrdiff_t>(remaining.size()), arguments_.end());
  if (remaining.empty()) return;
  if (remaining.front() == "--") {
    options_.command.erase(options_.command.begin());
  } else if (remaining.front().size() > 1 && remaining.front()[0] == '-') {
    throw UsageError(
        fmt::format("unknown option {}. Options of lockstep run stand before PROGRAM; see: "
                    "lockstep run --help",
                    remaining.front()));
  }
}

void CommandLine::take_config_file() {
  const ConfigFile file = read_config_file(config_);
  for (const ConfigFile::Entry& entry : file.options) {
    CLI::Option* option = app_.get_option_no_throw("--" + entry.key);
    if (option == nullptr || entry.key == "help" || entry.key == "config-file") {
      throw UsageError(fmt::format("{}:{}: there is no option {}. The keys are the long options of lockstep run --help",
                                   config_, entry.line, entry.key));
    }
    if (option->count() > 0) continue;  // the command line counts more
    try {
      option->add_result(entry.value);
      option->run_callback();
    } catch (const CLI::ParseError& error) {
      throw UsageError(fmt::format("{}:{}: {}", config_, entry.line, error.what()));
    }
  }
  // In front, so that what was given with -x comes later and counts.
  options_.environment.insert(options_.environment.begin(), file.environment.begin(), file.environment.end());
}

void CommandLine::take_familiar_options() {
  for (const auto& [meaning, option] : foreign_) {
    if (option->count() == 0) continue;
    switch (meaning->kind) {
      case ForeignOption::Kind::setting:
        if (const auto value = setting_value(*meaning, option->results().back())) {
          options_.environment.push_back(fmt::format("{}={}", meaning->target, *value));
        }
        break;
      case ForeignOption::Kind::no_effect:
        options_.no_effect.push_back(long_name(*option));
        break;
      case ForeignOption::Kind::refused:
        throw UsageError(fmt::format("{}: {}", long_name(*option), meaning->target));
    }
  }
}

/// torchrun's number of machines, which here follows from the hosts that are named.
void CommandLine::check_nodes(std::size_t hosts) const {
  const std::string count = std::to_string(hosts);
  if (node_rank_ == "0" && (nodes_.empty() || nodes_ == count || nodes_ == fmt::format("{0}:{0}", count))) return;
  throw UsageError(
      fmt::format("--nnodes {} --node-rank {}: one launcher starts the ranks of all hosts, of which {} {} named. Leave "
                  "these out, and name the hosts: -H a:2,b:2",
                  nodes_.empty() ? "1" : nodes_, node_rank_, count, hosts == 1 ? "is" : "are"));
}

/// Hosts are filled in their order. When all of them are this machine, the job is one of one machine.
void CommandLine::take_hosts() {
  if (!hosts_.empty() && !hostfile_.empty()) throw UsageError("give the hosts by -H or by --hostfile, not both");
  std::vector<HostSlots> hosts = parse_host_list(hosts_);
  if (!hostfile_.empty()) hosts = read_hostfile(hostfile_);
  check_nodes(std::max<std::size_t>(hosts.size(), 1));
  if (hosts.empty()) return;
  if (options_.processes == 0) options_.processes = total_slots(hosts);
  hosts = share_ranks(hosts, options_.processes);
  const bool elsewhere =
      std::any_of(hosts.begin(), hosts.end(), [](const HostSlots& host) { return !is_this_machine(host.name); });
  if (elsewhere) options_.hosts = hosts;
}

void CommandLine::note_unused_host_options() {
  if (!options_.hosts.empty()) return;
  for (const char* name : {"--ssh-port", "--ssh-identity-file", "--master-addr"}) {
    if (app_.count(name) > 0) options_.no_effect.emplace_back(name);
  }
}

void CommandLine::finish() {
  const bool named = !hosts_.empty() || !hostfile_.empty();
  if (processes_.empty() && app_.count("--num-proc") == 0 && !named) {
    throw UsageError("the number of processes is missing. Add -np N, for example: lockstep run -np 2 python train.py");
  }
  if (!processes_.empty() || !named) options_.processes = parse_processes(processes_);
  take_hosts();
  note_unused_host_options();
  if (options_.command.empty() || options_.command.front().empty()) {
    throw UsageError(
        fmt::format("the program is missing. Write it after the options, for example: "
                    "lockstep run -np {} python train.py",
                    options_.processes));
  }
  // mpirun's -x NAME passes on a variable, which ranks of this machine have anyway.
  std::erase_if(options_.environment,
                [](const std::string& setting) { return setting.find('=') == std::string::npos; });
  if (no_preload_) options_.environment.emplace_back("LOCKSTEP_PRELOAD=0");
  options_.shutdown_timeout = std::chrono::milliseconds(static_cast<long>(shutdown_seconds_ * 1000));
}

}  // namespace

std::variant<RunOptions, HelpText> parse_run_options(const std::vector<std::string>& arguments) {
  return CommandLine(arguments).read();
}

CommandText describe_run() {
  const std::vector<std::string> none;
  return CommandLine(none).describe();
}

}  // namespace lockstep::launcher
