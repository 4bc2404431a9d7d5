// Makes the transport for ranks that do not share memory.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/options.hpp"
#include "net/socket.hpp"
#include "rendezvous/host_meeting.hpp"
#include "transport/transport.hpp"

namespace lockstep::engine {

/// Where the ranks of a world on several hosts are, and how those that are left of it can meet again.
struct Roster {
  std::vector<rendezvous::Card> cards;   ///< by rank
  std::shared_ptr<net::Listener> again;  ///< of this rank: what its card says of a later meeting
};

/// All ranks are on this host, and meet as they would for shared memory.
std::unique_ptr<transport::Transport> connect_on_host(const Options& options, const std::function<bool()>& hopeless);

struct Connected {
  std::unique_ptr<transport::Transport> transport;
  std::shared_ptr<const Roster> roster;
};

/// Ranks on several hosts meet at `options.meeting`. `listener`: what rank 0 listens with, if it does so already.
Connected connect_between_hosts(const Options& options, const std::function<bool()>& hopeless,
                                std::shared_ptr<net::Listener> listener = nullptr);

/// Rank 0 begins to listen before anybody knows where: at the interface of the options, or the one that leads
/// elsewhere. It goes on until the process ends, for all engines. Gives the address.
std::string open_meeting(const Options& options);

}  // namespace lockstep::engine
