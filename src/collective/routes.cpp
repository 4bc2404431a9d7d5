#include "collective/routes.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "lockstep/error.hpp"

namespace lockstep::collective {
namespace {

// Parties that have joined have no part; the others count up.
std::size_t present_index(const Call& call, std::size_t index) {
  return static_cast<std::size_t>(std::count_if(call.parties.begin(),
                                                call.parties.begin() + static_cast<std::ptrdiff_t>(index),
                                                [](const Party& p) { return p.present; }));
}

Rows part_of(const Call& call, std::size_t index) {
  if (!call.parties[index].present) return {};
  return equal_part(call.root >= 0 ? call.parties[static_cast<std::size_t>(call.root)].rows
                                   : call.parties[static_cast<std::size_t>(call.self)].rows,
                    present_index(call, index), call.present());
}

std::int64_t rows_before(const Call& call, std::size_t source) {
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < source; ++i) rows += call.parties[i].present ? call.parties[i].rows : 0;
  return rows;
}

}  // namespace

std::size_t Call::present() const {
  return static_cast<std::size_t>(
      std::count_if(parties.begin(), parties.end(), [](const Party& party) { return party.present; }));
}

const Party& Call::first_present() const {
  return *std::find_if(parties.begin(), parties.end(), [](const Party& party) { return party.present; });
}

Rows equal_part(std::int64_t rows, std::size_t index, std::size_t parts) {
  const auto i = static_cast<std::int64_t>(index), n = static_cast<std::int64_t>(parts);
  const std::int64_t base = rows / n, extra = rows % n;
  return {i * base + std::min(i, extra), base + (i < extra ? 1 : 0)};
}

Route route(const Call& call, std::size_t source, std::size_t destination) {
  const Party& giver = call.parties[source];
  const Party& taker = call.parties[destination];
  if (!giver.present || !taker.present) return {};
  const std::size_t row = call.row_bytes();
  auto bytes = [&](std::int64_t rows) { return static_cast<std::size_t>(rows) * row; };
  switch (call.kind) {
    case Kind::barrier:
    case Kind::join:
    case Kind::new_group:
    case Kind::end_step:
    case Kind::bucket:
      return {};
    case Kind::all_reduce:
      return {0, 0, bytes(giver.rows)};
    case Kind::reduce:
      return call.is_root(destination) ? Route{0, 0, bytes(giver.rows)} : Route{};
    case Kind::broadcast:
      return call.is_root(source) ? Route{0, 0, bytes(giver.rows)} : Route{};
    case Kind::send:
    case Kind::receive:
      return call.is_root(source) && !call.is_root(destination) ? Route{0, 0, bytes(giver.rows)} : Route{};
    case Kind::all_gather:
      return {0, bytes(rows_before(call, source)), bytes(giver.rows)};
    case Kind::gather:
      return call.is_root(destination) ? Route{0, bytes(rows_before(call, source)), bytes(giver.rows)} : Route{};
    case Kind::scatter: {
      if (!call.is_root(source)) return {};
      const Rows rows = part_of(call, destination);
      return {bytes(rows.first), 0, bytes(rows.count)};
    }
    case Kind::reduce_scatter: {
      const Rows rows = part_of(call, destination);
      return {bytes(rows.first), 0, bytes(rows.count)};
    }
    case Kind::all_to_all: {
      std::int64_t from = 0, to = 0;
      for (std::size_t i = 0; i < destination; ++i) from += giver.splits[i];
      for (std::size_t i = 0; i < source; ++i) to += call.parties[i].present ? call.parties[i].splits[destination] : 0;
      return {bytes(from), bytes(to), bytes(giver.splits[destination])};
    }
  }
  return {};
}

std::int64_t result_rows(const Call& call) {
  const auto self = static_cast<std::size_t>(call.self);
  switch (call.kind) {
    case Kind::barrier:
    case Kind::join:
    case Kind::new_group:
    case Kind::end_step:
    case Kind::bucket:
      return 0;
    case Kind::all_reduce:
      return call.parties[self].rows;
    case Kind::broadcast:
      return call.parties[static_cast<std::size_t>(call.root)].rows;
    case Kind::send:
    case Kind::receive:
      return call.is_root(self) ? 0 : call.parties[static_cast<std::size_t>(call.root)].rows;
    case Kind::reduce:
      return call.is_root(self) ? call.parties[self].rows : 0;
    case Kind::all_gather:
      return rows_before(call, call.count());
    case Kind::gather:
      return call.is_root(self) ? rows_before(call, call.count()) : 0;
    case Kind::scatter:
    case Kind::reduce_scatter:
      return part_of(call, self).count;
    case Kind::all_to_all: {
      std::int64_t rows = 0;
      for (const Party& party : call.parties) rows += party.present ? party.splits[self] : 0;
      return rows;
    }
  }
  return 0;
}

void settle_splits(const Call& call) {
  if (call.kind != Kind::all_to_all) return;
  call.received->clear();
  for (const Party& giver : call.parties) {
    call.received->push_back(giver.present ? giver.splits[call.self] : 0);
    for (std::size_t taker = 0; giver.present && taker < call.count(); ++taker) {
      if (!call.parties[taker].present && giver.splits[taker] != 0) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("rank {} sends {} rows to rank {}, which has joined and takes none. Give it 0 rows.",
                                giver.rank, giver.splits[taker], call.parties[taker].rank));
      }
    }
  }
}

bool gives(const Call& call, std::size_t index) {
  if (!call.parties[index].present) return false;
  switch (call.kind) {
    case Kind::barrier:
    case Kind::join:
    case Kind::new_group:
    case Kind::end_step:
    case Kind::bucket:
      return false;
    case Kind::broadcast:
    case Kind::scatter:
    case Kind::send:
    case Kind::receive:
      return call.is_root(index);
    case Kind::all_reduce:
    case Kind::reduce:
    case Kind::reduce_scatter:
      return call.total_leaves == 0 || call.parties[index].leaf_count > 0;
    default:
      return true;
  }
}

}  // namespace lockstep::collective
