#include "env/net/data/host.h"

#include <errno.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <unistd.h>

#define BEACON_BYTES 4096u
#define NO_SEGMENT   (-1)

tow_status_t tow_data_beacon_open(tow_data_beacon_t *beacon, uint64_t proof)
{
    *beacon = (tow_data_beacon_t){.segment = NO_SEGMENT};
    const int segment = shmget(IPC_PRIVATE, BEACON_BYTES, IPC_CREAT | 0600);
    if (segment < 0)
        return TOW_ERRNO(errno, "creating %u bytes of shared memory",
                         BEACON_BYTES);
    void *memory = shmat(segment, NULL, 0);
    const int error = errno;
    /* Linux lets processes attach it until the last one has detached it. */
    shmctl(segment, IPC_RMID, NULL);
    if (memory == (void *)-1) // NOLINT: that is how it reports a failure
        return TOW_ERRNO(error, "attaching shared memory");
    memcpy(memory, &proof, sizeof(proof));
    *beacon = (tow_data_beacon_t){
        .memory = memory, .segment = segment, .proof = proof};
    return TOW_OK;
}

void tow_data_beacon_close(tow_data_beacon_t *beacon)
{
    if (beacon->memory != NULL) shmdt(beacon->memory);
    *beacon = (tow_data_beacon_t){.segment = NO_SEGMENT};
}

/* An id may name any segment of this host. */
static bool may_be_beacon(int32_t segment)
{
    struct shmid_ds about;
    return segment >= 0 && shmctl(segment, IPC_STAT, &about) == 0 &&
           about.shm_segsz == BEACON_BYTES && about.shm_perm.uid == geteuid() &&
           about.shm_perm.cuid == geteuid();
}

bool tow_data_beacon_is_visible(const tow_data_address_t *address)
{
    uint64_t found;
    if (!may_be_beacon(address->segment)) return false;
    const void *memory = shmat(address->segment, NULL, SHM_RDONLY);
    if (memory == (void *)-1) return false; // NOLINT: as above
    memcpy(&found, memory, sizeof(found));
    shmdt(memory);
    return found == address->proof;
}
