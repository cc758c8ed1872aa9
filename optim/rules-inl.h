// The bodies of all rules (rules.h) for 16 numbers at a time. Included once per target (Highway's
// foreach_target.h), hence no #pragma once.
#if defined(TESSERA_OPTIM_RULES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_OPTIM_RULES_INL_H
#undef TESSERA_OPTIM_RULES_INL_H
#else
#define TESSERA_OPTIM_RULES_INL_H
#endif

#include "kernels/cpu/v16-inl.h"
#include "optim/rules.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::rules::HWY_NAMESPACE {

using Number = kernels::HWY_NAMESPACE::V16;

HWY_INLINE Number all(float coefficient) { return kernels::HWY_NAMESPACE::set16(coefficient); }

template <class Coefficients, int kMoments>
class Body;

}  // namespace tessera::rules::HWY_NAMESPACE

#define TESSERA_NUMBERS HWY_NAMESPACE
#define TESSERA_BODY HWY_INLINE
#include "optim/rules/all.h"
#undef TESSERA_NUMBERS
#undef TESSERA_BODY

HWY_AFTER_NAMESPACE();

#endif  // include guard
