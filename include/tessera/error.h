// The errors Tessera throws. Every message names the value that was wrong and what would have been right.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace tessera {

// Base of everything Tessera throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller's mistake: a wrong argument, a call out of order, an impossible combination of options.
class UsageError : public Error {
 public:
  using Error::Error;
};

// The environment's refusal: a file, the disk, memory, the network, a device.
class EnvironmentError : public Error {
 public:
  using Error::Error;
};

// A part that this build does not contain, or this machine does not have. The message names the build flag or
// what is missing.
class UnsupportedError : public Error {
 public:
  using Error::Error;
};

// A collective that cannot complete: a peer failed, did not come within the deadline, or issued something
// else.
class CommunicationError : public Error {
 public:
  // `culprit` is the rank that failed or is missing, -1 where it is not known.
  CommunicationError(const std::string& message, int culprit) : Error(message), culprit_(culprit) {}
  int culprit() const { return culprit_; }

 private:
  int culprit_;
};

}  // namespace tessera
