/* Element types: XLA's and PJRT's names for the same things. */
#ifndef TOW_DEVICE_XLA_CPU_TYPES_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_TYPES_IMPL_HH_

#include "xla/pjrt/c/pjrt_c_api.h"
#include "xla/shape_util.h"
#include "xla/xla_data.pb.h"

namespace tow
{

struct type_pair {
    xla::PrimitiveType xla;
    PJRT_Buffer_Type pjrt;
};

inline constexpr type_pair TYPES[] = {
    {xla::PRED, PJRT_Buffer_Type_PRED},
    {xla::S2, PJRT_Buffer_Type_S2},
    {xla::S4, PJRT_Buffer_Type_S4},
    {xla::S8, PJRT_Buffer_Type_S8},
    {xla::S16, PJRT_Buffer_Type_S16},
    {xla::S32, PJRT_Buffer_Type_S32},
    {xla::S64, PJRT_Buffer_Type_S64},
    {xla::U2, PJRT_Buffer_Type_U2},
    {xla::U4, PJRT_Buffer_Type_U4},
    {xla::U8, PJRT_Buffer_Type_U8},
    {xla::U16, PJRT_Buffer_Type_U16},
    {xla::U32, PJRT_Buffer_Type_U32},
    {xla::U64, PJRT_Buffer_Type_U64},
    {xla::F16, PJRT_Buffer_Type_F16},
    {xla::F32, PJRT_Buffer_Type_F32},
    {xla::F64, PJRT_Buffer_Type_F64},
    {xla::BF16, PJRT_Buffer_Type_BF16},
    {xla::C64, PJRT_Buffer_Type_C64},
    {xla::C128, PJRT_Buffer_Type_C128},
    {xla::F8E5M2, PJRT_Buffer_Type_F8E5M2},
    {xla::F8E4M3, PJRT_Buffer_Type_F8E4M3},
    {xla::F8E4M3FN, PJRT_Buffer_Type_F8E4M3FN},
    {xla::F8E4M3B11FNUZ, PJRT_Buffer_Type_F8E4M3B11FNUZ},
    {xla::F8E5M2FNUZ, PJRT_Buffer_Type_F8E5M2FNUZ},
    {xla::F8E4M3FNUZ, PJRT_Buffer_Type_F8E4M3FNUZ},
    {xla::F8E3M4, PJRT_Buffer_Type_F8E3M4},
    {xla::F8E8M0FNU, PJRT_Buffer_Type_F8E8M0FNU},
    {xla::F4E2M1FN, PJRT_Buffer_Type_F4E2M1FN},
    {xla::TOKEN, PJRT_Buffer_Type_TOKEN},
};

inline PJRT_Buffer_Type buffer_type_of(xla::PrimitiveType type)
{
    for (const type_pair &pair : TYPES)
        if (pair.xla == type) return pair.pjrt;
    return PJRT_Buffer_Type_INVALID;
}

inline xla::PrimitiveType primitive_type_of(PJRT_Buffer_Type type)
{
    for (const type_pair &pair : TYPES)
        if (pair.pjrt == type) return pair.xla;
    return xla::PRIMITIVE_TYPE_INVALID;
}

} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_TYPES_IMPL_HH_ */
