/* The thread of one child. It sleeps in poll: for an order of the loop, for the
 * child's answer, its words and its end, and for the time limit. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "device/host/child_impl.h"

#define NS_PER_MS INT64_C(1000000)

static const char *symbol_of(const host_slot_t *slot)
{
    return slot->job->code->signature.name;
}

/* -- The child ----------------------------------------------------------------------- */

static void drop_child(host_slot_t *slot)
{
    if (slot->keeper.process.pid == 0) return;
    tow_child_process_end(&slot->keeper.process);
    slot->codes.count = 0;
    slot->has_memory = false;
    atomic_store(&slot->is_warm, false);
}

static tow_status_t ensure_child(host_slot_t *slot)
{
    if (slot->keeper.process.pid != 0 &&
        (slot->call_count >= TOW_HOST_CALL_COUNT_MAX ||
         slot->codes.count >= TOW_HOST_CODE_COUNT_MAX ||
         tow_child_process_has_ended(&slot->keeper.process)))
        drop_child(slot);
    if (slot->keeper.process.pid != 0) return TOW_OK;
    TOW_RETURN_IF_ERROR(
        tow_child_process_start(&slot->keeper.process, slot->host->words));
    slot->call_count = 0;
    atomic_store(&slot->is_warm, true);
    return TOW_OK;
}

/* -- Verdicts, each of which ends the child --------------------------------------------- */

static tow_status_t crashed(host_slot_t *slot)
{
    child_process_t *process = &slot->keeper.process;
    drop_child(slot);
    return TOW_ERROR(TOW_INTERNAL,
                     "host function %s on worker %s ended its process by %s; "
                     "its last words: %s",
                     symbol_of(slot), slot->host->name,
                     tow_child_process_how_it_ended(process).text,
                     tow_child_process_last_words(process));
}

static tow_status_t late(host_slot_t *slot)
{
    drop_child(slot);
    return TOW_ERROR(TOW_DEADLINE_EXCEEDED,
                     "host function %s on worker %s took longer than its "
                     "limit, %" PRId64 " ms, and was ended; its last words: %s",
                     symbol_of(slot), slot->host->name,
                     slot->job->time_limit_ns / NS_PER_MS,
                     tow_child_process_last_words(&slot->keeper.process));
}

static tow_status_t senseless(host_slot_t *slot)
{
    drop_child(slot);
    return TOW_ERROR(TOW_INTERNAL,
                     "host function %s on worker %s: its process sent what "
                     "makes no sense, and was ended; its last words: %s",
                     symbol_of(slot), slot->host->name,
                     tow_child_process_last_words(&slot->keeper.process));
}

static tow_status_t stopped(host_slot_t *slot)
{
    drop_child(slot);
    return TOW_ERROR(TOW_CANCELLED, "host function %s was cancelled",
                     symbol_of(slot));
}

/* -- Memory that both have ----------------------------------------------------------------- */

static void drop_memory(host_slot_t *slot)
{
    if (slot->memory != NULL) munmap(slot->memory, slot->memory_size);
    if (slot->memory_fd >= 0) close(slot->memory_fd);
    slot->memory = NULL;
    slot->memory_fd = -1;
    slot->memory_size = 0;
    slot->has_memory = false;
}

/* Sealed: should the child cut it short we would be ended by a signal. */
static tow_status_t open_sealed(const char *name, uint64_t size, int *out_fd)
{
    *out_fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*out_fd < 0) return TOW_ERRNO(errno, "memfd_create");
    if (ftruncate(*out_fd, (off_t)size) == 0 &&
        fcntl(*out_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
        return TOW_OK;
    tow_status_t status = TOW_ERRNO(errno, "%" PRIu64 " bytes to share", size);
    close(*out_fd);
    *out_fd = -1;
    return status;
}

/* Twice what is needed now: the next call may need a little more. */
static tow_status_t ensure_memory(host_slot_t *slot, uint64_t size)
{
    if (slot->memory_size >= size) return TOW_OK;
    drop_memory(slot);
    size = (size * 2 + 4095) / 4096 * 4096;
    TOW_RETURN_IF_ERROR(open_sealed("tow_host", size, &slot->memory_fd));
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED,
                        slot->memory_fd, 0);
    if (memory == MAP_FAILED) {
        drop_memory(slot);
        return TOW_ERRNO(errno, "mapping %" PRIu64 " bytes", size);
    }
    slot->memory = memory;
    slot->memory_size = size;
    return TOW_OK;
}

static uint64_t align(uint64_t size)
{
    return (size + PAGE_ALIGNMENT - 1) / PAGE_ALIGNMENT * PAGE_ALIGNMENT;
}

static uint64_t place(host_page_array_t *at, const tow_host_array_t *array,
                      uint64_t offset)
{
    at->type = (uint32_t)array->shape.type;
    at->rank = array->shape.rank;
    memcpy(at->dims, array->shape.dims,
           array->shape.rank * sizeof(array->shape.dims[0]));
    at->offset = offset;
    at->size = array->size;
    return offset + align(array->size);
}

/* What the call is about, but for the bytes. Returns the end. */
static uint64_t lay_out(const tow_host_job_t *job, host_page_t *page)
{
    const tow_signature_t *signature = &job->code->signature;
    uint64_t offset = align(sizeof(*page));
    page->input_count = (uint32_t)signature->argument_count;
    page->output_count = (uint32_t)signature->result_count;
    page->shard = job->shard;
    page->shard_count = (uint32_t)signature->partition_count;
    for (size_t i = 0; i < signature->argument_count; i++)
        offset = place(&page->arrays[i], &job->inputs[i], offset);
    for (size_t i = 0; i < signature->result_count; i++)
        offset = place(&page->arrays[signature->argument_count + i],
                       &job->outputs[i], offset);
    return offset;
}

static tow_status_t write_inputs(host_slot_t *slot)
{
    const tow_host_job_t *job = slot->job;
    host_page_t page = {0};
    if (job->is_probe) return TOW_OK;
    TOW_RETURN_IF_ERROR(ensure_memory(slot, lay_out(job, &page)));
    memcpy(slot->memory, &page, sizeof(page));
    for (uint32_t i = 0; i < page.input_count; i++)
        if (page.arrays[i].size > 0)
            memcpy((char *)slot->memory + page.arrays[i].offset,
                   job->inputs[i].bytes, page.arrays[i].size);
    return TOW_OK;
}

/* By what we laid out, not by what the child may have left there. */
static tow_status_t read_outputs(host_slot_t *slot)
{
    tow_host_job_t *job = slot->job;
    const host_page_t *shared = slot->memory;
    host_page_t page = {0};
    lay_out(job, &page);
    for (uint32_t i = 0; i < page.output_count; i++) {
        const uint32_t at = page.input_count + i;
        int64_t dims[TOW_RANK_MAX];
        uint64_t size;
        memcpy(dims, shared->arrays[at].dims, sizeof(dims));
        TOW_RETURN_IF_ERROR(tow_host_take_dims(job, i, dims));
        TOW_RETURN_IF_ERROR(tow_shape_bytes(&job->outputs[i].shape, &size));
        TOW_ASSERT(size <= job->outputs[i].size);
        if (size > 0)
            memcpy(job->outputs[i].bytes,
                   (const char *)slot->memory + page.arrays[at].offset, size);
    }
    return TOW_OK;
}

/* -- One call -------------------------------------------------------------------------------- */

static bool knows_code(const host_slot_t *slot)
{
    for (size_t i = 0; i < slot->codes.count; i++)
        if (slot->codes.items[i] == slot->job->code->number) return true;
    return false;
}

static tow_status_t open_code(const tow_host_code_t *code, int *out_fd)
{
    TOW_RETURN_IF_ERROR(open_sealed(code->signature.name, code->size, out_fd));
    for (size_t at = 0; at < code->size;) {
        const ssize_t count =
            write(*out_fd, (const char *)code->bytes + at, code->size - at);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return TOW_ERRNO(errno, "writing a shared object");
        at += (size_t)count;
    }
    return TOW_OK;
}

/* The socket is empty: an order fits. */
static tow_status_t send_order(host_slot_t *slot, const host_order_t *order,
                               const int *fds, size_t fd_count)
{
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec bytes = {.iov_base = (void *)order, .iov_len = sizeof(*order)};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1};
    if (fd_count > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        memcpy(CMSG_DATA(head), fds, fd_count * sizeof(int));
    }
    const ssize_t sent =
        sendmsg(slot->keeper.process.socket_fd, &message, MSG_NOSIGNAL);
    if (sent == (ssize_t)sizeof(*order)) return TOW_OK;
    return crashed(slot);
}

static tow_status_t give_order(host_slot_t *slot)
{
    const tow_host_job_t *job = slot->job;
    host_order_t order = {.magic = ORDER_MAGIC,
                          .is_probe = job->is_probe,
                          .code = job->code->number,
                          .memory_size = slot->memory_size};
    int fds[2];
    size_t fd_count = 0;
    int code_fd = -1;
    memcpy(order.symbol, symbol_of(slot),
           strnlen(symbol_of(slot), TOW_NAME_MAX));
    order.has_memory = !slot->has_memory && slot->memory_fd >= 0;
    if (order.has_memory) fds[fd_count++] = slot->memory_fd;
    order.has_code = !knows_code(slot);
    if (order.has_code) {
        if (!tow_vec_push(&slot->codes, job->code->number))
            return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
        tow_status_t status = open_code(job->code, &code_fd);
        if (status != TOW_OK) {
            if (code_fd >= 0) close(code_fd);
            slot->codes.count--;
            return status;
        }
        fds[fd_count++] = code_fd;
    }
    tow_status_t status = send_order(slot, &order, fds, fd_count);
    if (code_fd >= 0) close(code_fd);
    if (status == TOW_OK) slot->has_memory |= order.has_memory;
    return status;
}

static tow_status_t judge(host_slot_t *slot, host_reply_t *reply)
{
    reply->text[sizeof(reply->text) - 1] = '\0';
    for (char *at = reply->text; *at != '\0'; at++)
        if ((unsigned char)*at < ' ') *at = ' ';
    if (reply->magic != ORDER_MAGIC) return senseless(slot);
    switch ((host_verdict_t)reply->verdict) {
    case HOST_CALLED: break;
    case HOST_NO_OBJECT:
        drop_child(slot); /* It says that it has the code. */
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "host function %s: worker %s cannot load its shared "
                         "object: %s",
                         symbol_of(slot), slot->host->name, reply->text);
    case HOST_NO_SYMBOL:
        return TOW_ERROR(TOW_NOT_FOUND,
                         "host function %s: its shared object has no such "
                         "symbol; is it declared static, or mangled?",
                         symbol_of(slot));
    default: return senseless(slot);
    }
    if (reply->result != 0)
        return TOW_ERROR(
            TOW_ABORTED, "host function %s on worker %s failed with %d: %s",
            symbol_of(slot), slot->host->name, reply->result,
            reply->text[0] != '\0' ? reply->text : "it says no more");
    return slot->job->is_probe ? TOW_OK : read_outputs(slot);
}

typedef struct conversation {
    host_slot_t *slot;
    int64_t deadline_ns;
    host_reply_t reply;
    size_t reply_size; /* that has come */
    bool is_over;
    tow_status_t status; /* owned: the verdict, once it is over */
} conversation_t;

static void conclude(conversation_t *talk, tow_status_t take_status)
{
    talk->is_over = true;
    talk->status = take_status;
}

static void receive(conversation_t *talk)
{
    host_slot_t *slot = talk->slot;
    const ssize_t count = read(slot->keeper.process.socket_fd,
                               (char *)&talk->reply + talk->reply_size,
                               sizeof(talk->reply) - talk->reply_size);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) {
        conclude(talk, crashed(slot));
        return;
    }
    if (count < 0) return;
    talk->reply_size += (size_t)count;
    if (talk->reply_size == sizeof(talk->reply))
        conclude(talk, judge(slot, &talk->reply));
}

/* One sleep and what came of it. */
static void follow(conversation_t *talk)
{
    host_slot_t *slot = talk->slot;
    const tow_keeper_news_t news =
        tow_keeper_follow(&slot->keeper, talk->deadline_ns, POLLIN);
    if (news.is_late) {
        conclude(talk, late(slot));
        return;
    }
    if (news.is_cancelled) {
        conclude(talk, stopped(slot));
        return;
    }
    /* One that has ended may have answered after we looked. */
    if (news.has_message || news.has_ended) receive(talk);
    if (!talk->is_over && news.has_ended) conclude(talk, crashed(slot));
}

static tow_status_t call(host_slot_t *slot)
{
    TOW_RETURN_IF_ERROR(ensure_child(slot));
    TOW_RETURN_IF_ERROR(write_inputs(slot));
    slot->keeper.process.last_size = 0; /* Words of before are about others. */
    slot->call_count++;
    TOW_RETURN_IF_ERROR(give_order(slot));
    conversation_t talk = {.slot = slot,
                           .deadline_ns =
                               tow_keeper_now_ns() + slot->job->time_limit_ns};
    while (!talk.is_over)
        follow(&talk);
    return talk.status;
}

/* -- The thread ------------------------------------------------------------------------------- */

/* A child that ends between calls is replaced when it is needed. */
static unsigned await_orders(host_slot_t *slot)
{
    unsigned orders;
    while ((orders = tow_keeper_await(&slot->keeper)) == 0)
        drop_child(slot);
    return orders;
}

void *host_slot_run(void *context)
{
    host_slot_t *slot = context;
    tow_env_t *env = slot->host->host.env;
    for (;;) {
        const unsigned orders = await_orders(slot);
        if ((orders & TOW_KEEPER_QUIT) != 0) break;
        slot->status =
            (orders & TOW_KEEPER_CANCEL) != 0 ? stopped(slot) : call(slot);
        tow_env_post(env, &slot->finished);
    }
    drop_child(slot);
    drop_memory(slot);
    tow_env_post(env, &slot->ended);
    return NULL;
}
