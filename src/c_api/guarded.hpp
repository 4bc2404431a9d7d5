// What every function of the C interface does: it catches everything, keeps the message per thread, and takes structs
// from callers that were compiled with another version of the header.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "lockstep/error.hpp"
#include "lockstep/lockstep.h"

namespace lockstep::c_api {

/// The message of this thread's last failure.
inline std::string& last_error() {
  thread_local std::string message;
  return message;
}

inline int failed(ErrorCode code, const char* message) {
  last_error() = message;
  return static_cast<int>(code);
}

template <class Body>
int guarded(Body&& body) {
  try {
    body();
    return LS_OK;
  } catch (const Error& error) {
    return failed(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return failed(ErrorCode::system, "out of memory");
  } catch (const std::exception& error) {
    return failed(ErrorCode::internal, error.what());
  } catch (...) {
    return failed(ErrorCode::internal, "an exception of unknown type");
  }
}

template <class Handle>
Handle& required(Handle* handle, const char* what) {
  if (handle == nullptr) throw Error(ErrorCode::invalid_argument, std::string(what) + " is null");
  return *handle;
}

/// Takes as much of a caller's struct as both sides know; fields that an older caller does not have keep their default.
template <class Struct>
Struct take(const Struct* given, const Struct& defaults, const char* what) {
  const std::size_t size = required(given, what).struct_size;
  if (size < sizeof(std::size_t) || size > 4096) {
    throw Error(ErrorCode::invalid_argument, std::string(what) + ": struct_size is not set. Set it with sizeof.");
  }
  Struct taken = defaults;
  std::memcpy(&taken, given, std::min(size, sizeof(Struct)));
  return taken;
}

}  // namespace lockstep::c_api
