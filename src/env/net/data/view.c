/* Views: read-only mappings of memory blocks of other processes on this host;
 * and shares: writes whose bytes are used there, without a copy.
 *
 * A pull may name the block (base/block.h) that contains its bytes. We
 * duplicate the writer's descriptor out of its process, which the kernel
 * permits if it permits reading that process's memory, and map the block once
 * for all writes out of it. From then on we hold its pages: it does not matter
 * if the writer frees them or dies. The writer guarantees that it does not
 * modify the bytes until the write is answered, or never if it does not receive
 * the answer.
 *
 * Rationale: docs/decisions/0007-zero-copy-sharing.md. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "env/net/data/data_impl.h"

struct tow_data_view {
    tow_data_t *data;
    tow_list_t list; /* in data->views or data->idle_views */
    uint64_t node;   /* of the writer */
    uint64_t block;  /* its number there */
    uint8_t *base;
    size_t size;
    uint32_t use_count;
    int64_t idle_since_ns;
};

struct tow_share {
    tow_data_t *data;
    tow_list_t in_inbound;
    tow_data_inbound_t *inbound; /* lent; NULL: the lane has closed */
    uint64_t write;
    tow_data_view_t *view; /* referenced */
};

/* -- Mapping -------------------------------------------------------------- */

/* Only a file that cannot shrink: otherwise reading the mapping could raise
 * SIGBUS. */
static bool is_block(int fd, uint64_t size)
{
    struct stat file;
    const int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(fd, &file) == 0 &&
           (uint64_t)file.st_size == size;
}

static uint8_t *map_block(const tow_data_cross_read_t *cross_read,
                          const tow_data_pull_t *what)
{
    const int fd = (int)syscall(SYS_pidfd_getfd, cross_read->pidfd,
                                (int)what->block_fd, 0u);
    if (fd < 0) return NULL;
    void *base = MAP_FAILED;
    if (is_block(fd, what->block_size))
        base = mmap(NULL, (size_t)what->block_size, PROT_READ,
                    MAP_SHARED | MAP_NORESERVE, fd, 0);
    close(fd);
    return base == MAP_FAILED ? NULL : base;
}

static void unmap(tow_data_view_t *view)
{
    tow_list_remove(&view->list);
    munmap(view->base, view->size);
    tow_free(view);
}

static tow_data_view_t *find_in(const tow_list_t *head, uint64_t node,
                                uint64_t block)
{
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        tow_data_view_t *view = TOW_CONTAINER_OF(at, tow_data_view_t, list);
        if (view->block == block && view->node == node) return view;
    }
    return NULL;
}

static tow_data_view_t *find_view(tow_data_t *data, uint64_t node,
                                  uint64_t block)
{
    tow_data_view_t *view = find_in(&data->idle_views, node, block);
    if (view != NULL) {
        data->idle_view_count--;
        tow_list_remove(&view->list);
        tow_list_append(&data->views, &view->list);
        return view;
    }
    return find_in(&data->views, node, block);
}

/* If the writer has withdrawn its bytes, the descriptor may belong to another
 * file by now; if the guard still holds after mapping, it was the right one. */
static tow_data_view_t *make_view(tow_data_inbound_t *inbound,
                                  const tow_data_pull_t *what)
{
    uint8_t *base = map_block(&inbound->cross_read, what);
    if (base == NULL) return NULL;
    tow_data_view_t *view = NULL;
    if (tow_data_cross_read_guard_holds(&inbound->cross_read,
                                        what->guard_address, what->write))
        view = tow_calloc(1, sizeof(*view));
    if (view == NULL) {
        munmap(base, (size_t)what->block_size);
        return NULL;
    }
    view->data = inbound->data;
    view->node = inbound->node;
    view->block = what->block;
    view->base = base;
    view->size = (size_t)what->block_size;
    tow_list_append(&inbound->data->views, &view->list);
    return view;
}

tow_data_view_t *tow_data_view_open(tow_data_inbound_t *inbound,
                                    const tow_data_pull_t *what)
{
    if (what->block == 0) return NULL;
    tow_data_view_t *view =
        find_view(inbound->data, inbound->node, what->block);
    if (view == NULL) view = make_view(inbound, what);
    if (view == NULL) return NULL;
    view->use_count++;
    if (view->size == what->block_size) return view;
    tow_data_view_close(view);
    return NULL;
}

const uint8_t *tow_data_view_bytes(const tow_data_view_t *view,
                                   const tow_data_pull_t *what)
{
    return view->base + what->block_offset;
}

/* -- Idle views ----------------------------------------------------------- */

static tow_data_view_t *oldest_idle(const tow_data_t *data)
{
    if (data->idle_view_count == 0) return NULL;
    return TOW_CONTAINER_OF(data->idle_views.next, tow_data_view_t, list);
}

static void unmap_idle(tow_data_t *data, tow_data_view_t *view)
{
    data->idle_view_count--;
    unmap(view);
}

static void wait_for_oldest(tow_data_t *data)
{
    const tow_data_view_t *view = oldest_idle(data);
    if (view != NULL && !tow_timer_is_armed(&data->view_timer))
        tow_env_timer_start(&data->net->env, &data->view_timer,
                            view->idle_since_ns + TOW_NET_VIEW_IDLE_NS);
}

void tow_data_views_fired(tow_timer_t *timer)
{
    tow_data_t *data = TOW_CONTAINER_OF(timer, tow_data_t, view_timer);
    const int64_t before_ns =
        tow_env_now_ns(&data->net->env) - TOW_NET_VIEW_IDLE_NS;
    tow_data_view_t *view;
    while ((view = oldest_idle(data)) != NULL &&
           view->idle_since_ns <= before_ns)
        unmap_idle(data, view);
    wait_for_oldest(data);
}

void tow_data_view_close(tow_data_view_t *view)
{
    tow_data_t *data = view->data;
    TOW_ASSERT(view->use_count > 0);
    if (--view->use_count > 0) return;
    view->idle_since_ns = tow_env_now_ns(&data->net->env);
    tow_list_remove(&view->list);
    tow_list_append(&data->idle_views, &view->list);
    if (++data->idle_view_count > TOW_NET_VIEW_IDLE_COUNT_MAX)
        unmap_idle(data, oldest_idle(data));
    wait_for_oldest(data);
}

void tow_data_views_end(tow_data_t *data)
{
    tow_env_timer_stop(&data->net->env, &data->view_timer);
    tow_data_view_t *view;
    while ((view = oldest_idle(data)) != NULL)
        unmap_idle(data, view);
    TOW_ASSERT(tow_list_is_empty(&data->views)); /* Their users have ended. */
}

static uint32_t check_views_in(const tow_list_t *head, bool are_used)
{
    uint32_t count = 0;
    for (const tow_list_t *at = head->next; at != head; at = at->next) {
        const tow_data_view_t *view =
            TOW_CONTAINER_OF(at, const tow_data_view_t, list);
        TOW_ASSERT((view->use_count > 0) == are_used);
        count++;
    }
    return count;
}

void tow_data_views_check(const tow_data_t *data)
{
    check_views_in(&data->views, true);
    TOW_ASSERT(check_views_in(&data->idle_views, false) ==
               data->idle_view_count);
    TOW_ASSERT(data->idle_view_count <= TOW_NET_VIEW_IDLE_COUNT_MAX);
}

/* -- Shares --------------------------------------------------------------- */

bool tow_data_may_share(const tow_data_region_t *region,
                        const tow_data_pull_t *what)
{
    return (what->flags & TOW_DATA_MAY_SHARE) && region->may_share &&
           region->arrived != NULL && what->place == 0 &&
           what->total == region->size &&
           region->data->share_count < TOW_NET_SHARE_COUNT_MAX;
}

bool tow_data_share_begin(tow_data_inbound_t *inbound,
                          tow_data_region_t *region,
                          const tow_data_pull_t *what,
                          tow_data_view_t *take_view)
{
    tow_data_t *data = inbound->data;
    tow_share_t *share = tow_calloc(1, sizeof(*share));
    if (share == NULL) return false;
    *share = (tow_share_t){.data = data,
                           .inbound = inbound,
                           .write = what->write,
                           .view = take_view};
    tow_list_append(&inbound->shares, &share->in_inbound);
    data->share_count++;
    data->shared_arrival_count++;
    const tow_arrival_t arrival = {
        .size = what->total,
        .tag = what->tag,
        .shared = tow_data_view_bytes(take_view, what),
        .share = share,
    };
    tow_data_inbound_send_shared(inbound, what->write);
    tow_data_begin_turn(data);
    region->arrived(region->context, &region->region, &arrival);
    return true;
}

void tow_data_share_release(tow_env_t *env, tow_share_t *share)
{
    tow_data_t *data = share->data;
    tow_data_inbound_t *inbound = share->inbound;
    TOW_ASSERT(data->net == TOW_CONTAINER_OF(env, tow_net_t, env));
    if (inbound != NULL) {
        tow_list_remove(&share->in_inbound);
        if (inbound->state == TOW_DATA_INBOUND_OPEN)
            tow_data_inbound_answer(inbound, share->write, TOW_CODE_OK);
    }
    tow_data_view_close(share->view);
    tow_free(share);
    data->share_count--;
    tow_data_check_closed(data);
}

void tow_data_shares_detach(tow_data_inbound_t *inbound)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&inbound->shares)) != NULL)
        TOW_CONTAINER_OF(item, tow_share_t, in_inbound)->inbound = NULL;
}
