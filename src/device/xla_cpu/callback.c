#include "device/xla_cpu/callback.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/xla_cpu/ffi.h"

static bool (*find_caller)(int32_t device_id, tow_xla_caller_t *out_caller);

static bool find_function(const XLA_FFI_Attrs *attrs, uint64_t *out_function)
{
    const XLA_FFI_Scalar *scalar =
        tow_ffi_find_scalar(attrs, "function", XLA_FFI_DataType_U64);
    if (scalar == NULL) return false;
    memcpy(out_function, scalar->value, sizeof(*out_function));
    return true;
}

/* 0 for an unknown type. */
static size_t element_bits(XLA_FFI_DataType type)
{
    switch (type) {
    case XLA_FFI_DataType_S2:
    case XLA_FFI_DataType_U2: return 2;
    case XLA_FFI_DataType_S4:
    case XLA_FFI_DataType_U4:
    case XLA_FFI_DataType_F4E2M1FN: return 4;
    case XLA_FFI_DataType_PRED:
    case XLA_FFI_DataType_S8:
    case XLA_FFI_DataType_U8:
    case XLA_FFI_DataType_F8E3M4:
    case XLA_FFI_DataType_F8E4M3:
    case XLA_FFI_DataType_F8E4M3B11FNUZ:
    case XLA_FFI_DataType_F8E4M3FN:
    case XLA_FFI_DataType_F8E4M3FNUZ:
    case XLA_FFI_DataType_F8E5M2:
    case XLA_FFI_DataType_F8E5M2FNUZ:
    case XLA_FFI_DataType_F8E8M0FNU: return 8;
    case XLA_FFI_DataType_S16:
    case XLA_FFI_DataType_U16:
    case XLA_FFI_DataType_F16:
    case XLA_FFI_DataType_BF16: return 16;
    case XLA_FFI_DataType_S32:
    case XLA_FFI_DataType_U32:
    case XLA_FFI_DataType_F32: return 32;
    case XLA_FFI_DataType_S64:
    case XLA_FFI_DataType_U64:
    case XLA_FFI_DataType_F64:
    case XLA_FFI_DataType_C64: return 64;
    case XLA_FFI_DataType_C128: return 128;
    default: return 0;
    }
}

/* Elements of less than a byte are packed, the first in the lowest bits. */
static size_t bytes_of(const XLA_FFI_Buffer *buffer)
{
    const size_t bits = element_bits(buffer->dtype);
    size_t count = 1;
    for (int64_t i = 0; i < buffer->rank; i++)
        count *= (size_t)buffer->dims[i];
    return bits < 8 ? (count * bits + 7) / 8 : count * (bits / 8);
}

static bool is_known(void *const *buffers, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const XLA_FFI_Buffer *buffer = buffers[i];
        if (buffer->dtype != XLA_FFI_DataType_TOKEN &&
            element_bits(buffer->dtype) == 0)
            return false;
    }
    return true;
}

/* Lists the arrays, without tokens. Returns their number. */
static size_t list(void *const *buffers, int64_t count,
                   tow_xla_call_array_t *out)
{
    size_t used = 0;
    for (int64_t i = 0; i < count; i++) {
        const XLA_FFI_Buffer *buffer = buffers[i];
        if (buffer->dtype == XLA_FFI_DataType_TOKEN) continue;
        out[used++] = (tow_xla_call_array_t){buffer->data, bytes_of(buffer)};
    }
    return used;
}

static bool identify_caller(const XLA_FFI_CallFrame *frame,
                            tow_xla_caller_t *out_caller)
{
    XLA_FFI_DeviceOrdinal_Get_Args args = {
        .struct_size = XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE,
        .ctx = frame->ctx,
    };
    return frame->api->XLA_FFI_DeviceOrdinal_Get(&args) == NULL &&
           find_caller(args.device_ordinal, out_caller) &&
           out_caller->calls != NULL;
}

/* NULL if the call is valid. */
static XLA_FFI_Error *check(const XLA_FFI_CallFrame *frame,
                            tow_xla_call_t *call, tow_xla_caller_t *caller)
{
    if (!find_function(&frame->attrs, &call->function))
        return tow_ffi_error(frame->api, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                             TOW_XLA_CALLBACK_TARGET
                             ": no attribute `function` of type ui64");
    if (!identify_caller(frame, caller))
        return tow_ffi_error(
            frame->api, XLA_FFI_Error_Code_FAILED_PRECONDITION,
            TOW_XLA_CALLBACK_TARGET
            ": this process serves no calls of client functions; run the "
            "program on a cluster, from the client that has the function");
    if (!is_known(frame->args.args, frame->args.size) ||
        !is_known(frame->rets.rets, frame->rets.size))
        return tow_ffi_error(
            frame->api, XLA_FFI_Error_Code_UNIMPLEMENTED,
            TOW_XLA_CALLBACK_TARGET
            ": unsupported element type; convert the array first");
    return NULL;
}

static XLA_FFI_Error *no_memory(const XLA_FFI_CallFrame *frame)
{
    return tow_ffi_error(frame->api, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED,
                         TOW_XLA_CALLBACK_TARGET ": out of memory");
}

/* `sizes` becomes the first argument, unless it is empty. */
static XLA_FFI_Error *call_client(XLA_FFI_CallFrame *frame,
                                  tow_xla_call_array_t sizes)
{
    tow_xla_call_t call = {.struct_size = sizeof(call)};
    tow_xla_caller_t caller;
    XLA_FFI_Error *error = check(frame, &call, &caller);
    if (error != NULL) return error;
    const size_t count = (size_t)(frame->args.size + frame->rets.size);
    const size_t size_count = sizes.size > 0;
    tow_xla_call_array_t *arrays =
        calloc(count + size_count + 1, sizeof(*arrays));
    if (arrays == NULL) return no_memory(frame);
    arrays[0] = sizes;
    call.run_id = caller.run_id;
    call.device = caller.device;
    call.arguments = arrays;
    call.argument_count = size_count + list(frame->args.args, frame->args.size,
                                            arrays + size_count);
    call.results = arrays + call.argument_count;
    call.result_count =
        list(frame->rets.rets, frame->rets.size, arrays + call.argument_count);
    char why[TOW_XLA_CALL_ERROR_SIZE] = "";
    int code =
        caller.calls->run(caller.calls->context, &call, why, sizeof(why));
    free(arrays);
    return code == 0 ? NULL
                     : tow_ffi_error(frame->api, (XLA_FFI_Error_Code)code, why);
}

static XLA_FFI_Error *execute(XLA_FFI_CallFrame *frame)
{
    if (tow_ffi_answer_metadata(frame)) return NULL;
    return call_client(frame, (tow_xla_call_array_t){0});
}

/* Lists the dimensions of all arguments and returns their number; `out` may be
 * NULL, to count only. */
static size_t list_sizes(const XLA_FFI_CallFrame *frame, int64_t *out)
{
    size_t count = 0;
    for (int64_t i = 0; i < frame->args.size; i++) {
        const XLA_FFI_Buffer *buffer = frame->args.args[i];
        if (buffer->dtype == XLA_FFI_DataType_TOKEN) continue;
        for (int64_t j = 0; j < buffer->rank; j++, count++)
            if (out != NULL) out[count] = buffer->dims[j];
    }
    return count;
}

static XLA_FFI_Error *execute_on_shards(XLA_FFI_CallFrame *frame)
{
    if (tow_ffi_answer_metadata(frame)) return NULL;
    const size_t count = list_sizes(frame, NULL);
    int64_t *sizes = calloc(count + 1, sizeof(*sizes));
    if (sizes == NULL) return no_memory(frame);
    list_sizes(frame, sizes);
    XLA_FFI_Error *error = call_client(
        frame, (tow_xla_call_array_t){sizes, count * sizeof(*sizes)});
    free(sizes);
    return error;
}

static XLA_FFI_Error *register_one(const XLA_FFI_Api *api, const char *target,
                                   XLA_FFI_Handler *handler)
{
    static const char platform[] = "Host";
    XLA_FFI_Handler_Register_Args args = {
        .struct_size = XLA_FFI_Handler_Register_Args_STRUCT_SIZE,
        .name = {target, strlen(target)},
        .platform = {platform, sizeof(platform) - 1},
        .bundle = {.execute = handler},
    };
    return api->XLA_FFI_Handler_Register(&args);
}

XLA_FFI_Error *tow_xla_callback_register(
    const XLA_FFI_Api *api,
    bool (*find)(int32_t device_id, tow_xla_caller_t *out_caller))
{
    find_caller = find;
    XLA_FFI_Error *error = register_one(api, TOW_XLA_CALLBACK_TARGET, execute);
    if (error != NULL) return error;
    return register_one(api, TOW_XLA_SHARD_CALLBACK_TARGET, execute_on_shards);
}
