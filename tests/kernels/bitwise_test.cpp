#include "tests/kernels/support.h"
