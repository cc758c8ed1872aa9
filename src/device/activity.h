// Describes what the calling thread is doing, such as an instruction and its rank, for error messages. A
// scope costs two stores; the text is made only when an error needs it.
#pragma once

#include <string>

namespace tessera::device {

class Activity {
 public:
  // `describe(context)` may be called until the scope ends.
  using Describe = std::string (*)(const void* context);
  Activity(Describe describe, const void* context) noexcept;
  ~Activity();
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

  // The text of the calling thread's open scopes, outermost first: "rank 2: gather of block.3". Empty without
  // any.
  static std::string current();

 private:
  std::string text() const;

  Describe describe_;
  const void* context_;
  const Activity* outer_;
};

}  // namespace tessera::device
