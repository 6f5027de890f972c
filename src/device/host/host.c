#include "device/host/host.h"

#include <elf.h>
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/signature.h"

/* -- Checks of code and signatures ------------------------------------------ */

#ifdef __x86_64__
#define MACHINE EM_X86_64
#elif defined(__aarch64__)
#define MACHINE EM_AARCH64
#else
#error "no ELF machine number is known for this processor"
#endif

tow_status_t tow_host_code_check(tow_bytes_t bytes)
{
    Elf64_Ehdr header;
    if (bytes.size < sizeof(header) || memcmp(bytes.data, ELFMAG, SELFMAG) != 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a host function must be a shared object (ELF), and "
                         "these %zu bytes are not; build it with `cc -shared "
                         "-fPIC`",
                         bytes.size);
    memcpy(&header, bytes.data, sizeof(header));
    if (header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_type == ET_DYN &&
        header.e_machine == MACHINE)
        return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "a host function must be a shared object for the workers' "
                     "kind of machine, and this ELF file is not; build it with "
                     "`cc -shared -fPIC` on a host like the workers'");
}

static tow_status_t check_array(const tow_signature_t *signature,
                                const char *what, size_t index,
                                const tow_array_info_t *array)
{
    uint64_t bytes;
    TOW_RETURN_IF_ERROR(tow_status_annotate(
        tow_shape_bytes(&array->shape, &bytes), "host function %s, %s %zu",
        signature->name, what, index));
    if (bytes == array->bytes && array->sharding.data == NULL) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "host function %s, %s %zu: %" PRIu64
                     " bytes declared for a shape of %" PRIu64
                     ", or a sharding, which host functions do not have",
                     signature->name, what, index, array->bytes, bytes);
}

tow_status_t tow_host_signature_check(const tow_signature_t *signature)
{
    if (!signature->is_host || signature->name[0] == '\0' ||
        signature->argument_count == TOW_COUNT_UNKNOWN ||
        signature->alias_count > 0 || signature->replica_count != 1)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "not the signature of a host function, which has a "
                         "symbol, inputs, outputs and no donated argument");
    if (signature->argument_count + signature->result_count >
        TOW_HOST_ARRAY_COUNT_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "host function %s has %zu inputs and %zu outputs: the "
                         "limit is %u together",
                         signature->name, signature->argument_count,
                         signature->result_count, TOW_HOST_ARRAY_COUNT_MAX);
    for (size_t i = 0; i < signature->argument_count; i++)
        TOW_RETURN_IF_ERROR(
            check_array(signature, "input", i, &signature->arguments[i]));
    for (size_t i = 0; i < signature->result_count; i++)
        TOW_RETURN_IF_ERROR(
            check_array(signature, "output", i, &signature->results[i]));
    return TOW_OK;
}

/* -- Code ------------------------------------------------------------------- */

static tow_status_t read_devices(tow_host_code_t *code,
                                 const tow_host_code_options_t *options)
{
    if (options->device_count == 0 ||
        options->device_count > options->device_count_max)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a host function on %zu devices of a worker that has "
                         "%zu",
                         options->device_count, options->device_count_max);
    code->devices = tow_arena_calloc(&code->arena, options->device_count,
                                     sizeof(code->devices[0]));
    code->shards = tow_arena_calloc(&code->arena, options->device_count,
                                    sizeof(code->shards[0]));
    if (code->devices == NULL || code->shards == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    code->device_count = options->device_count;
    for (size_t i = 0; i < options->device_count; i++) {
        code->devices[i] = options->devices[i];
        code->shards[i] = options->shards[i];
        if (options->devices[i] >= options->device_count_max)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "a host function on device %u of a worker that "
                             "has %zu",
                             options->devices[i], options->device_count_max);
    }
    return TOW_OK;
}

static tow_status_t read_code(tow_host_code_t *code,
                              const tow_host_code_options_t *options)
{
    TOW_RETURN_IF_ERROR(tow_signature_unpack(options->signature, &code->arena,
                                             &code->signature));
    TOW_RETURN_IF_ERROR(tow_host_signature_check(&code->signature));
    TOW_RETURN_IF_ERROR(
        tow_host_code_check((tow_bytes_t){code->bytes, code->size}));
    return read_devices(code, options);
}

tow_status_t tow_host_code_create(const tow_host_code_options_t *options,
                                  tow_host_code_t **out_code)
{
    *out_code = NULL;
    tow_host_code_t *code = tow_calloc(1, sizeof(*code));
    if (code == NULL) {
        tow_free(options->take_bytes);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    code->reference_count = 1;
    code->bytes = options->take_bytes;
    code->size = options->size;
    tow_arena_init(&code->arena, 0);
    /* The signature is copied into the arena. */
    tow_status_t status = read_code(code, options);
    if (status != TOW_OK) {
        tow_host_code_release(code);
        return status;
    }
    *out_code = code;
    return TOW_OK;
}

void tow_host_code_retain(tow_host_code_t *code)
{
    code->reference_count++;
}

void tow_host_code_release(tow_host_code_t *code)
{
    if (code == NULL) return;
    TOW_ASSERT(code->reference_count > 0);
    if (--code->reference_count > 0) return;
    tow_free(code->bytes);
    tow_arena_deinit(&code->arena);
    tow_free(code);
}

/* -- Outputs ---------------------------------------------------------------- */

tow_status_t tow_host_accept_dims(tow_host_job_t *job, size_t output,
                                  const int64_t *dims)
{
    const tow_signature_t *signature = &job->code->signature;
    const tow_array_info_t *info = &signature->results[output];
    tow_shape_t *shape = &job->outputs[output].shape;
    for (uint32_t i = 0; i < info->shape.rank; i++) {
        const bool is_bound = (info->bounds >> i & 1) != 0;
        if (dims[i] != info->shape.dims[i] &&
            (!is_bound || dims[i] < 0 || dims[i] > info->shape.dims[i]))
            return TOW_ERROR(TOW_OUT_OF_RANGE,
                             "host function %s gave output %zu with %" PRId64
                             " in dimension %u, where %s%" PRId64
                             " was declared",
                             signature->name, output, dims[i], i,
                             is_bound ? "at most " : "", info->shape.dims[i]);
    }
    *shape = info->shape;
    memcpy(shape->dims, dims, info->shape.rank * sizeof(dims[0]));
    return TOW_OK;
}
