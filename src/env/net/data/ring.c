#include "env/net/data/ring.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/ipc.h>
#include <sys/shm.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "env/tuning.h"

/* The layout of the segment: this header, then the slots. */
typedef struct ring_head {
    /* The total number of slots that the target has copied out, modulo 2^32.
     * Written by the target, read by the writer. */
    _Atomic(uint32_t) taken_count;
    uint8_t rest_of_page[4096 - sizeof(uint32_t)];
} ring_head_t;

#define RING_BYTES         \
    (sizeof(ring_head_t) + \
     TOW_NET_RING_SLOT_COUNT * (size_t)TOW_NET_FRAGMENT_SHM_BYTES)

struct tow_data_ring {
    ring_head_t *head; /* attached */
    uint8_t *slots;
    int id;
    uint32_t put_count; /* the writer's counter */
};

static tow_status_t attach(int id, tow_data_ring_t **out_ring)
{
    tow_data_ring_t *ring = tow_calloc(1, sizeof(*ring));
    if (ring == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    void *memory = shmat(id, NULL, 0);
    if (memory == (void *)-1) { // NOLINT: that is how it says so
        const int error = errno;
        tow_free(ring);
        return TOW_ERRNO(error, "attaching shared memory %d", id);
    }
    ring->head = memory;
    ring->slots = (uint8_t *)memory + sizeof(ring_head_t);
    ring->id = id;
    *out_ring = ring;
    return TOW_OK;
}

tow_status_t tow_data_ring_create(tow_data_ring_t **out_ring)
{
    const int id = shmget(IPC_PRIVATE, RING_BYTES, IPC_CREAT | 0600);
    if (id < 0)
        return TOW_ERRNO(errno, "taking %zu bytes of shared memory",
                         RING_BYTES);
    tow_status_t status = attach(id, out_ring);
    /* Linux lets processes attach it until the last one has detached it. */
    shmctl(id, IPC_RMID, NULL);
    return status;
}

tow_status_t tow_data_ring_attach(int32_t id, tow_data_ring_t **out_ring)
{
    struct shmid_ds about;
    if (shmctl(id, IPC_STAT, &about) != 0)
        return TOW_ERRNO(errno, "looking at shared memory %d", id);
    if (about.shm_segsz != RING_BYTES)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "shared memory %d has %zu bytes and is no ring", id,
                         about.shm_segsz);
    return attach(id, out_ring);
}

void tow_data_ring_destroy(tow_data_ring_t *ring)
{
    if (ring == NULL) return;
    shmdt(ring->head);
    tow_free(ring);
}

int32_t tow_data_ring_id(const tow_data_ring_t *ring)
{
    return ring->id;
}

static uint8_t *slot_at(const tow_data_ring_t *ring, uint32_t index)
{
    return ring->slots + (size_t)(index % TOW_NET_RING_SLOT_COUNT) *
                             TOW_NET_FRAGMENT_SHM_BYTES;
}

bool tow_data_ring_put(tow_data_ring_t *ring, const void *bytes, size_t size,
                       tow_data_ring_ref_t *out_ref)
{
    TOW_ASSERT(size <= TOW_NET_FRAGMENT_SHM_BYTES);
    const uint32_t taken =
        atomic_load_explicit(&ring->head->taken_count, memory_order_acquire);
    if (ring->put_count - taken >= TOW_NET_RING_SLOT_COUNT) return false;
    memcpy(slot_at(ring, ring->put_count), bytes, size);
    *out_ref = (tow_data_ring_ref_t){
        .ring = ring->id, .index = ring->put_count, .size = (uint32_t)size};
    ring->put_count++;
    return true;
}

const void *tow_data_ring_get(const tow_data_ring_t *ring,
                              const tow_data_ring_ref_t *ref)
{
    return slot_at(ring, ref->index);
}

void tow_data_ring_take(tow_data_ring_t *ring, const tow_data_ring_ref_t *ref)
{
    atomic_store_explicit(&ring->head->taken_count, ref->index + 1,
                          memory_order_release);
}
