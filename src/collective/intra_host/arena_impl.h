/* The layout of the arena. Zeroed memory is a valid empty arena, so it needs no
 * initialisation, and pages are allocated on first use. Processes may die
 * between any two stores: each field is either atomic, or published by an
 * atomic store with release semantics. */
#ifndef TOW_COLLECTIVE_INTRA_HOST_ARENA_IMPL_H_
#define TOW_COLLECTIVE_INTRA_HOST_ARENA_IMPL_H_

#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/macros.h"
#include "collective/intra_host/intra_host.h"
#include "collective/intra_host/tuning.h"

#define ARENA_MAGIC UINT64_C(0x36414e455241574f) /* changes with the layout */

/* One of the two buffers of a mailbox. */
typedef struct mailbox_half {
    /* Key of the collective and step whose bytes are here; 0: none. Stored
     * last, with release semantics. */
    alignas(TOW_CACHE_LINE_BYTES) _Atomic uint64_t key;
    /* Version in the upper 48 bits, number of readers that have not finished in
     * the lower 16. By the version a late reader detects that the bytes were
     * replaced. */
    _Atomic uint64_t ticket;
    uint64_t run_id;
    uint32_t departed_count; /* of the arena, when the bytes were published */
    int64_t only_reader;     /* a device; -1: several readers */
} mailbox_half_t;

typedef struct mailbox {
    /* Futex. */
    alignas(TOW_CACHE_LINE_BYTES) _Atomic uint32_t publish_count;
    _Atomic uint32_t waiter_count;
    uint32_t last_half; /* accessed by the owner only */
    mailbox_half_t halves[2];
    alignas(4096) uint8_t stage[2][TOW_INTRA_HOST_STAGE_BYTES];
} mailbox_t;

/* The owner of a mailbox. Kept apart from the mailboxes, densely, because every
 * collective searches these rows. */
typedef struct owner_row {
    _Atomic int64_t device_plus_one; /* 0: free, -1: being claimed */
    _Atomic uint32_t process;        /* its row in arena_t.processes */
} owner_row_t;

typedef struct process_row {
    alignas(TOW_CACHE_LINE_BYTES) _Atomic int32_t pid; /* 0: free */
    _Atomic uint64_t heartbeat;
} process_row_t;

/* Members that wait for all of a gang sleep here; the last member to publish
 * wakes them together. Chosen by key; two gangs that share one cause spurious
 * wake-ups only. */
typedef struct gang_futex {
    alignas(TOW_CACHE_LINE_BYTES) _Atomic uint32_t count; /* futex */
    _Atomic uint32_t waiter_count;
} gang_futex_t;

/* The reason of an abort. Written before the run id is stored in `aborted`. */
typedef struct abort_row {
    int32_t code;
    char reason[TOW_INTRA_HOST_REASON_BYTES];
} abort_row_t;

typedef struct arena {
    _Atomic uint64_t magic;
    _Atomic uint64_t memory;      /* random; 0: nobody has opened it yet */
    _Atomic uint64_t abort_count; /* the next row is abort_count % size */
    /* Processes that have left, or were found dead. */
    _Atomic uint32_t departed_count;
    /* Run ids plus one; 0: free. Kept apart from the reasons, densely, because
     * every collective searches them. */
    alignas(TOW_CACHE_LINE_BYTES) _Atomic uint64_t
        aborted[TOW_INTRA_HOST_ABORT_COUNT];
    abort_row_t aborts[TOW_INTRA_HOST_ABORT_COUNT];
    process_row_t processes[TOW_INTRA_HOST_PROCESS_COUNT_MAX];
    owner_row_t owners[TOW_INTRA_HOST_DEVICE_COUNT_MAX];
    gang_futex_t gang_futexes[TOW_INTRA_HOST_GANG_FUTEX_COUNT];
    mailbox_t mailboxes[TOW_INTRA_HOST_DEVICE_COUNT_MAX];
} arena_t;

/* NULL: an arena of this process alone. */
tow_status_t arena_open(const char *name, arena_t **out_arena) TOW_MUST_USE;
void arena_close(arena_t *arena);

#endif /* TOW_COLLECTIVE_INTRA_HOST_ARENA_IMPL_H_ */
