/* tow_host_child PARENT MEMORY: calls host functions as it is told over
 * descriptor TOW_CHILD_TALK_FD, until that is closed or PARENT is gone. MEMORY
 * bounds the bytes of its private memory; 0 is no bound. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <towpath/host.h>
#include <unistd.h>

#include "device/host/talk_impl.h"

typedef struct object {
    uint64_t number;
    void *handle;
} object_t;

typedef struct child {
    object_t objects[TOW_HOST_CODE_COUNT_MAX];
    size_t object_count;
    void *memory;
    uint64_t memory_size;
    int fds[2]; /* that came with the order; -1: none */
} child_t;

/* -- Orders ------------------------------------------------------------------------- */

static void take_fds(child_t *child, struct msghdr *message)
{
    const struct cmsghdr *head = CMSG_FIRSTHDR(message);
    child->fds[0] = child->fds[1] = -1;
    if (head == NULL || head->cmsg_type != SCM_RIGHTS) return;
    const size_t size = head->cmsg_len - CMSG_LEN(0);
    memcpy(child->fds, CMSG_DATA(head),
           size < sizeof(child->fds) ? size : sizeof(child->fds));
}

static bool receive(child_t *child, host_order_t *order)
{
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec bytes = {.iov_base = order, .iov_len = sizeof(*order)};
    struct msghdr message = {.msg_iov = &bytes,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    ssize_t count;
    do {
        count = recvmsg(TOW_CHILD_TALK_FD, &message, MSG_WAITALL);
    } while (count < 0 && errno == EINTR);
    if (count != (ssize_t)sizeof(*order) || order->magic != ORDER_MAGIC)
        return false;
    take_fds(child, &message);
    return true;
}

static bool map_memory(child_t *child, const host_order_t *order, int fd)
{
    if (child->memory != NULL) munmap(child->memory, child->memory_size);
    child->memory = mmap(NULL, order->memory_size, PROT_READ | PROT_WRITE,
                         MAP_SHARED, fd, 0);
    child->memory_size = order->memory_size;
    close(fd);
    return child->memory != MAP_FAILED;
}

/* -- Objects ------------------------------------------------------------------------ */

static void *find_object(const child_t *child, uint64_t number)
{
    for (size_t i = 0; i < child->object_count; i++)
        if (child->objects[i].number == number) return child->objects[i].handle;
    return NULL;
}

/* The file has no name; the loader finds it by ours. The descriptor stays: the
 * loader goes by names, and another object under the same one would be this. */
static void *load_object(child_t *child, uint64_t number, int fd)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) return NULL;
    child->objects[child->object_count++] = (object_t){number, handle};
    return handle;
}

/* -- Calls -------------------------------------------------------------------------- */

static int call(child_t *child, const host_order_t *order,
                tow_host_entry_t entry, host_reply_t *reply)
{
    host_page_t *page = child->memory;
    tow_host_input_t inputs[TOW_HOST_ARRAY_COUNT_MAX];
    tow_host_output_t outputs[TOW_HOST_ARRAY_COUNT_MAX];
    tow_host_call_t it = {.struct_size = sizeof(it),
                          .version = TOW_HOST_VERSION,
                          .input_count = page->input_count,
                          .inputs = inputs,
                          .output_count = page->output_count,
                          .outputs = outputs,
                          .shard = page->shard,
                          .shard_count = page->shard_count,
                          .error = reply->text,
                          .error_size = sizeof(reply->text)};
    (void)order;
    for (uint32_t i = 0; i < page->input_count; i++) {
        const host_page_array_t *at = &page->arrays[i];
        inputs[i] =
            (tow_host_input_t){(tow_type_t)at->type, at->rank, at->dims,
                               (char *)child->memory + at->offset, at->size};
    }
    for (uint32_t i = 0; i < page->output_count; i++) {
        host_page_array_t *at = &page->arrays[page->input_count + i];
        outputs[i] =
            (tow_host_output_t){(tow_type_t)at->type, at->rank, at->dims,
                                (char *)child->memory + at->offset, at->size};
    }
    return entry(&it);
}

static void serve(child_t *child, const host_order_t *order,
                  host_reply_t *reply)
{
    size_t next_fd = 0;
    reply->verdict = HOST_REFUSED;
    if (order->has_memory && !map_memory(child, order, child->fds[next_fd++]))
        return;
    void *handle = find_object(child, order->code);
    if (order->has_code)
        handle = load_object(child, order->code, child->fds[next_fd]);
    if (handle == NULL) {
        const char *why = dlerror();
        reply->verdict = HOST_NO_OBJECT;
        snprintf(reply->text, sizeof(reply->text), "%s",
                 why != NULL ? why : "it was never sent");
        return;
    }
    void *symbol = dlsym(handle, order->symbol);
    reply->verdict = symbol != NULL ? HOST_CALLED : HOST_NO_SYMBOL;
    if (symbol == NULL || order->is_probe) return;
    tow_host_entry_t entry;
    memcpy(&entry, &symbol, sizeof(entry)); /* What dlsym gives is no function
                                               pointer to ISO C. */
    reply->result = call(child, order, entry, reply);
}

int main(int argc, char **argv)
{
    static child_t child;
    static host_order_t order;
    static host_reply_t reply;
    if (argc != 3) {
        fprintf(stderr, "usage: tow_host_child PARENT MEMORY\n");
        return 2;
    }
    tow_child_process_behave(argv[1], argv[2]);
    while (receive(&child, &order)) {
        memset(&reply, 0, sizeof(reply));
        serve(&child, &order, &reply);
        reply.magic = ORDER_MAGIC;
        fflush(NULL); /* What the function said belongs to its call. */
        if (write(TOW_CHILD_TALK_FD, &reply, sizeof(reply)) !=
            (ssize_t)sizeof(reply))
            break;
    }
    _exit(0);
}
