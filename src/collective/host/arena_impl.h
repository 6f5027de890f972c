/* What lies in the arena. Zeroed memory is an arena that nobody uses, so that
 * it needs no initialisation and pages come as they are touched. Everything here
 * is read by processes that may die at any moment: each field is either atomic,
 * or published by an atomic with release after it was written. */
#ifndef TOW_COLLECTIVE_HOST_ARENA_IMPL_H_
#define TOW_COLLECTIVE_HOST_ARENA_IMPL_H_

#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/macros.h"
#include "collective/host/host.h"
#include "collective/host/tuning.h"

#define ARENA_MAGIC UINT64_C(0x35414e455241574f) /* changes with the layout */

/* One half of a mailbox. */
typedef struct mail_half {
    /* Names the collective and the step whose bytes are here; 0: none. Stored
     * last, with release. */
    alignas(TOW_CACHE_LINE_BYTES) _Atomic uint64_t key;
    /* Version in the upper 48 bits, readers that have not finished in the lower
     * 16. The version tells a late reader that its bytes were replaced. */
    _Atomic uint64_t ticket;
    uint64_t run_id;     /* whose bytes these are */
    uint32_t left_count; /* of the arena, when they were published */
    int64_t only_reader; /* a device; -1: there are several */
} mail_half_t;

typedef struct mailbox {
    /* Futex: counts publications. */
    alignas(TOW_CACHE_LINE_BYTES) _Atomic uint32_t bell;
    _Atomic uint32_t waiter_count;
    uint32_t last_half; /* the owner's alone */
    mail_half_t halves[2];
    alignas(4096) uint8_t stage[2][TOW_HOST_STAGE_BYTES];
} mailbox_t;

/* Whose a mailbox is. Apart from the mailboxes, and dense: it is searched at
 * each collective. */
typedef struct owner_row {
    _Atomic int64_t device_plus_one; /* 0: free, -1: being claimed */
    _Atomic uint32_t process;        /* row of the owner's process */
} owner_row_t;

typedef struct process_row {
    alignas(TOW_CACHE_LINE_BYTES) _Atomic int32_t pid; /* 0: free */
    _Atomic uint64_t heartbeat;
} process_row_t;

/* Where members sleep who wait for all of a gang: whoever completes it wakes
 * them together. Chosen by key; two gangs that share one wake each other for
 * nothing, and no more. */
typedef struct gang_bell {
    alignas(TOW_CACHE_LINE_BYTES) _Atomic uint32_t count; /* futex */
    _Atomic uint32_t waiter_count;
} gang_bell_t;

/* Why a run was aborted. Written before the run is named in `aborted`. */
typedef struct abort_row {
    int32_t code;
    char reason[TOW_HOST_REASON_BYTES];
} abort_row_t;

typedef struct arena {
    _Atomic uint64_t magic;
    _Atomic uint64_t abort_count; /* ever; the next row is this % size */
    _Atomic uint32_t left_count;  /* processes that have left, or were found
                                     dead */
    /* Run ids plus one; 0: free. Apart from the reasons, and dense: they are
     * searched at each collective. */
    alignas(
        TOW_CACHE_LINE_BYTES) _Atomic uint64_t aborted[TOW_HOST_ABORT_COUNT];
    abort_row_t aborts[TOW_HOST_ABORT_COUNT];
    process_row_t processes[TOW_HOST_PROCESS_COUNT_MAX];
    owner_row_t owners[TOW_HOST_DEVICE_COUNT_MAX];
    gang_bell_t bells[TOW_HOST_BELL_COUNT];
    mailbox_t mailboxes[TOW_HOST_DEVICE_COUNT_MAX];
} arena_t;

tow_status_t arena_open(const char *name, arena_t **out_arena) TOW_MUST_USE;
void arena_close(arena_t *arena);

#endif /* TOW_COLLECTIVE_HOST_ARENA_IMPL_H_ */
