/* tow_host_child PARENT MEMORY: serves calls of host functions that arrive on
 * descriptor TOW_CHILD_SOCKET_FD until that is closed or the process PARENT
 * ends. MEMORY limits the bytes of its private memory; 0 is no limit. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <towpath/host.h>
#include <unistd.h>

#include "device/child/process.h"
#include "device/host/protocol_impl.h"

typedef struct object {
    uint64_t number;
    void *handle;
} object_t;

typedef struct child {
    object_t objects[TOW_HOST_CODE_COUNT_MAX];
    size_t object_count;
    void *memory;
    uint64_t memory_size;
} child_t;

/* The reply to a call. */
typedef struct result {
    host_outcome_t outcome;
    int returned; /* by the function */
    char text[TOW_HOST_ERROR_BYTES_MAX];
} result_t;

/* -- Objects and memory ----------------------------------------------------- */

static bool map_memory(child_t *child, const host_call_t *request, int fd)
{
    if (child->memory != NULL) munmap(child->memory, child->memory_size);
    child->memory = mmap(NULL, request->memory_size, PROT_READ | PROT_WRITE,
                         MAP_SHARED, fd, 0);
    child->memory_size = request->memory_size;
    close(fd);
    return child->memory != MAP_FAILED;
}

static void *find_object(const child_t *child, uint64_t number)
{
    for (size_t i = 0; i < child->object_count; i++)
        if (child->objects[i].number == number) return child->objects[i].handle;
    return NULL;
}

/* The loader opens the memory file by the path of its descriptor, which stays
 * open: the loader takes another object under the same path for this one. */
static void *load_object(child_t *child, uint64_t number, int fd)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) return NULL;
    child->objects[child->object_count++] = (object_t){number, handle};
    return handle;
}

/* -- Calls ------------------------------------------------------------------ */

static int call(const child_t *child, tow_host_entry_t entry, result_t *result)
{
    host_layout_t *layout = child->memory;
    tow_host_input_t inputs[TOW_HOST_ARRAY_COUNT_MAX];
    tow_host_output_t outputs[TOW_HOST_ARRAY_COUNT_MAX];
    tow_host_call_t it = {.struct_size = sizeof(it),
                          .version = TOW_HOST_VERSION,
                          .input_count = layout->input_count,
                          .inputs = inputs,
                          .output_count = layout->output_count,
                          .outputs = outputs,
                          .shard = layout->shard,
                          .shard_count = layout->shard_count,
                          .error = result->text,
                          .error_size = sizeof(result->text)};
    for (uint32_t i = 0; i < layout->input_count; i++) {
        const host_layout_array_t *at = &layout->arrays[i];
        inputs[i] =
            (tow_host_input_t){(tow_type_t)at->type, at->rank, at->dims,
                               (char *)child->memory + at->offset, at->size};
    }
    for (uint32_t i = 0; i < layout->output_count; i++) {
        host_layout_array_t *at = &layout->arrays[layout->input_count + i];
        outputs[i] =
            (tow_host_output_t){(tow_type_t)at->type, at->rank, at->dims,
                                (char *)child->memory + at->offset, at->size};
    }
    return entry(&it);
}

static void serve(child_t *child, const host_call_t *request, const int *fds,
                  result_t *result)
{
    size_t next_fd = 0;
    result->outcome = HOST_REFUSED;
    if (request->has_memory && !map_memory(child, request, fds[next_fd++]))
        return;
    void *handle = find_object(child, request->code);
    if (request->has_code)
        handle = load_object(child, request->code, fds[next_fd]);
    if (handle == NULL) {
        const char *error = dlerror();
        result->outcome = HOST_NO_OBJECT;
        snprintf(result->text, sizeof(result->text), "%s",
                 error != NULL ? error : "it was never sent");
        return;
    }
    void *symbol = dlsym(handle, request->symbol);
    result->outcome = symbol != NULL ? HOST_CALLED : HOST_NO_SYMBOL;
    if (symbol == NULL || request->is_probe) return;
    tow_host_entry_t entry;
    memcpy(&entry, &symbol, sizeof(entry)); /* ISO C has no conversion from an
                                               object to a function pointer. */
    result->returned = call(child, entry, result);
}

static bool send_result(const result_t *result)
{
    tow_child_out_t out = tow_child_out(&tow_host_protocol, HOST_RESULT);
    out.header.value = (uint32_t)result->outcome;
    out.header.code = (uint32_t)result->returned;
    tow_child_out_set(&out, 0, result->text,
                      strnlen(result->text, sizeof(result->text) - 1));
    return tow_child_send(TOW_CHILD_SOCKET_FD, &out) == TOW_CHILD_DONE;
}

static bool serve_one(child_t *child)
{
    static result_t result;
    tow_child_in_t in = {.accepts_fds = true};
    if (tow_child_receive(TOW_CHILD_SOCKET_FD, &tow_host_protocol, &in) !=
            TOW_CHILD_DONE ||
        in.header.type != HOST_CALL ||
        in.header.sizes[0] != sizeof(host_call_t))
        return false;
    memset(&result, 0, sizeof(result));
    serve(child, in.parts[0], in.fds, &result);
    tow_child_in_reset(&in);
    fflush(NULL); /* The function's output belongs to its call. */
    return send_result(&result);
}

int main(int argc, char **argv)
{
    static child_t child;
    if (argc != 3) {
        fprintf(stderr, "usage: tow_host_child PARENT MEMORY\n");
        return 2;
    }
    tow_child_process_enter(argv[1], argv[2]);
    while (serve_one(&child))
        ;
    _exit(0);
}
