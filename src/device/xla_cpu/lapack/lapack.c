#include "device/xla_cpu/lapack/lapack.h"

#include <string.h>

#include "device/xla_cpu/ffi.h"
#include "device/xla_cpu/lapack/library_impl.h"
#include "device/xla_cpu/lapack/routines_impl.h"

/* XLA does not pass a handler the name of its target, so each routine has its
 * own handler; the type is that of the first argument. */
#define DEFINE_HANDLER(name)                               \
    static XLA_FFI_Error *name(XLA_FFI_CallFrame *frame)   \
    {                                                      \
        return tow_lapack_call(frame, &tow_lapack_##name); \
    }
DEFINE_HANDLER(gees)
DEFINE_HANDLER(geev)
DEFINE_HANDLER(gehrd)
DEFINE_HANDLER(geqp3)
DEFINE_HANDLER(geqrf)
DEFINE_HANDLER(gesdd)
DEFINE_HANDLER(gesvd)
DEFINE_HANDLER(getrf)
DEFINE_HANDLER(gtsv)
DEFINE_HANDLER(lagts)
DEFINE_HANDLER(orgqr)
DEFINE_HANDLER(ormqr)
DEFINE_HANDLER(potrf)
DEFINE_HANDLER(syevd)
DEFINE_HANDLER(sytrd)
DEFINE_HANDLER(trsm)

#define REAL(name, handler)             \
    {"lapack_s" name "_ffi", handler},  \
    {                                   \
        "lapack_d" name "_ffi", handler \
    }
#define COMPLEX(name, handler)          \
    {"lapack_c" name "_ffi", handler},  \
    {                                   \
        "lapack_z" name "_ffi", handler \
    }
#define ALL(name, handler) REAL(name, handler), COMPLEX(name, handler)

/* The names are jaxlib's. */
static const struct {
    const char *name;
    XLA_FFI_Handler *handler;
} TARGETS[] = {
    ALL("gees", gees),       ALL("geev", geev),
    ALL("gehrd", gehrd),     ALL("geqp3", geqp3),
    ALL("geqrf", geqrf),     ALL("gesdd", gesdd),
    ALL("gesvd", gesvd),     ALL("getrf", getrf),
    ALL("gtsv", gtsv),       ALL("potrf", potrf),
    ALL("trsm", trsm),       REAL("orgqr", orgqr),
    COMPLEX("ungqr", orgqr), REAL("ormqr", ormqr),
    COMPLEX("unmqr", ormqr), REAL("syevd", syevd),
    COMPLEX("heevd", syevd), REAL("sytrd", sytrd),
    COMPLEX("hetrd", sytrd), {"tridiagonal_solve_perturbed_ffi", lagts},
};
#define TARGET_COUNT (sizeof(TARGETS) / sizeof(*TARGETS))

const char *tow_lapack_target(size_t index)
{
    return index < TARGET_COUNT ? TARGETS[index].name : NULL;
}

XLA_FFI_Handler *tow_lapack_handler(const char *target, size_t length)
{
    for (size_t i = 0; i < TARGET_COUNT; i++)
        if (strlen(TARGETS[i].name) == length &&
            memcmp(TARGETS[i].name, target, length) == 0)
            return TARGETS[i].handler;
    return NULL;
}

XLA_FFI_Error *tow_lapack_instantiate(XLA_FFI_CallFrame *frame)
{
    if (tow_ffi_answer_metadata(frame)) return NULL;
    const char *problem = tow_lapack_library_open();
    if (problem == NULL) return NULL;
    return tow_ffi_error(frame->api, XLA_FFI_Error_Code_UNIMPLEMENTED, problem);
}

XLA_FFI_Error *tow_lapack_register(const XLA_FFI_Api *api)
{
    static const char PLATFORM[] = "Host";
    for (size_t i = 0; i < TARGET_COUNT; i++) {
        XLA_FFI_Handler_Register_Args args = {
            .struct_size = XLA_FFI_Handler_Register_Args_STRUCT_SIZE,
            .name = {TARGETS[i].name, strlen(TARGETS[i].name)},
            .platform = {PLATFORM, sizeof(PLATFORM) - 1},
            .bundle = {.instantiate = tow_lapack_instantiate,
                       .execute = TARGETS[i].handler},
        };
        XLA_FFI_Error *error = api->XLA_FFI_Handler_Register(&args);
        if (error != NULL) return error;
    }
    return NULL;
}
