// The threads of this process that sleep until something happens, and how they are woken.
#pragma once

#include <memory>
#include <vector>

#include "base/fd.hpp"

namespace lockstep::transport::tcp {

/// Can be polled together with sockets.
class Bell {
 public:
  Bell();

  void strike() const;
  void silence() const;
  int fd() const { return fd_.get(); }

 private:
  Fd fd_;
};

/// REQUIRES a lock of its owner's.
class Sleepers {
 public:
  using BellPtr = std::shared_ptr<const Bell>;

  BellPtr lie_down();
  void get_up(const BellPtr& bell);
  void wake_all() const;
  bool nobody() const { return asleep_.empty(); }

 private:
  std::vector<BellPtr> asleep_;
  std::vector<BellPtr> spare_;
};

}  // namespace lockstep::transport::tcp
