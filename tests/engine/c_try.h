/* For C and C++ tests of the C API: what is not TESSERA_OK is returned at once. */
#pragma once

#include "tessera/c_api.h"

#define TRY(call)                              \
  do {                                         \
    const tessera_status status_ = (call);     \
    if (status_ != TESSERA_OK) return status_; \
  } while (0)
