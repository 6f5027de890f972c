#include <stdlib.h>
#include <string.h>

#include "fake_impl.h"

static size_t element_bytes(PJRT_Buffer_Type type)
{
    switch (type) {
    case PJRT_Buffer_Type_F32:
    case PJRT_Buffer_Type_S32:
    case PJRT_Buffer_Type_U32: return 4;
    case PJRT_Buffer_Type_F64:
    case PJRT_Buffer_Type_S64:
    case PJRT_Buffer_Type_U64: return 8;
    case PJRT_Buffer_Type_F16:
    case PJRT_Buffer_Type_BF16: return 2;
    default: return 1;
    }
}

PJRT_Buffer *fake_buffer_make(PJRT_Device *device, PJRT_Buffer_Type type,
                              const int64_t *dims, size_t rank)
{
    PJRT_Buffer *buffer = calloc(1, sizeof(*buffer));
    if (buffer == NULL) abort();
    buffer->reference_count = 1;
    buffer->device = device;
    buffer->type = type;
    buffer->rank = rank;
    buffer->bytes = element_bytes(type);
    for (size_t i = 0; i < rank; i++) {
        if (i < 8) buffer->dims[i] = dims[i];
        buffer->bytes *= (size_t)dims[i];
    }
    buffer->ready = fake_event_make();
    return buffer;
}

PJRT_Error *fake_buffer_allocate(PJRT_Buffer *buffer)
{
    PJRT_Device *device = buffer->device;
    const int64_t limit = device->client->memory_limit_bytes;
    pthread_mutex_lock(&fake_lock);
    const int64_t in_use = device->bytes_in_use;
    const bool fits = limit == 0 || (int64_t)buffer->bytes <= limit - in_use;
    if (fits) device->bytes_in_use += (int64_t)buffer->bytes;
    if (device->bytes_in_use > device->bytes_peak)
        device->bytes_peak = device->bytes_in_use;
    pthread_mutex_unlock(&fake_lock);
    if (fits) {
        buffer->data = malloc(buffer->bytes > 0 ? buffer->bytes : 1);
        if (buffer->data != NULL) return NULL;
    }
    return fake_error(PJRT_Error_Code_RESOURCE_EXHAUSTED,
                      "out of memory: %zu bytes asked for, %lld of %lld in use",
                      buffer->bytes, (long long)in_use, (long long)limit);
}

void fake_buffer_retain(PJRT_Buffer *buffer)
{
    pthread_mutex_lock(&fake_lock);
    buffer->reference_count++;
    pthread_mutex_unlock(&fake_lock);
}

void fake_buffer_release(PJRT_Buffer *buffer)
{
    pthread_mutex_lock(&fake_lock);
    const bool is_last = --buffer->reference_count == 0;
    if (is_last && buffer->data != NULL && buffer->host_done == NULL)
        buffer->device->bytes_in_use -= (int64_t)buffer->bytes;
    pthread_mutex_unlock(&fake_lock);
    if (!is_last) return;
    if (buffer->host_done == NULL) {
        free(buffer->data);
    } else {
        fake_event_complete(buffer->host_done, NULL);
        fake_event_release(buffer->host_done);
    }
    fake_event_release(buffer->ready);
    free(buffer);
}

/* -- Copies ----------------------------------------------------------------- */

/* Uses the host's memory until the buffer is freed. */
static void lend(PJRT_Buffer *buffer,
                 PJRT_Client_BufferFromHostBuffer_Args *args)
{
    buffer->data = (void *)args->data; /* Nobody writes to it. */
    buffer->host_done = fake_event_make();
    args->done_with_host_buffer = fake_event_retain(buffer->host_done);
}

PJRT_Error *fake_buffer_from_host(PJRT_Client_BufferFromHostBuffer_Args *args)
{
    PJRT_Buffer *buffer =
        fake_buffer_make(args->device, args->type, args->dims, args->num_dims);
    if (args->host_buffer_semantics ==
        PJRT_HostBufferSemantics_kImmutableZeroCopy) {
        lend(buffer, args);
    } else {
        PJRT_Error *error = fake_buffer_allocate(buffer);
        if (error != NULL) {
            fake_buffer_release(buffer);
            return error;
        }
        if (buffer->bytes > 0) memcpy(buffer->data, args->data, buffer->bytes);
        args->done_with_host_buffer = fake_event_make();
        fake_event_complete(args->done_with_host_buffer, NULL);
    }
    const PJRT_Error lost = {PJRT_Error_Code_DATA_LOSS, "the copy was lost"};
    fake_event_complete(buffer->ready,
                        args->client->fails_uploads ? &lost : NULL);
    args->buffer = buffer;
    return NULL;
}

PJRT_Error *fake_buffer_uninitialized(
    PJRT_Client_CreateUninitializedBuffer_Args *args)
{
    PJRT_Buffer *buffer =
        fake_buffer_make(args->device, args->shape_element_type,
                         args->shape_dims, args->shape_num_dims);
    PJRT_Error *error = fake_buffer_allocate(buffer);
    if (error != NULL) {
        fake_buffer_release(buffer);
        return error;
    }
    /* Who has xla_cpu's extension gives zeroes. */
    if (buffer->data != NULL) memset(buffer->data, 0, buffer->bytes);
    fake_event_complete(buffer->ready, NULL);
    args->buffer = buffer;
    return NULL;
}

/* A copy that waits for its source, on a thread of its own. */
typedef struct download {
    PJRT_Buffer *source; /* counted */
    PJRT_Event *done;    /* counted */
    void *destination;
} download_t;

static void *run_download(void *context)
{
    download_t *download = context;
    const PJRT_Error error = fake_event_await(download->source->ready);
    if (error.code == PJRT_Error_Code_OK && download->source->bytes > 0)
        memcpy(download->destination, download->source->data,
               download->source->bytes);
    /* First, for the client may go as soon as the event is complete. */
    fake_buffer_release(download->source);
    fake_event_complete(download->done, &error);
    fake_event_release(download->done);
    free(download);
    return NULL;
}

PJRT_Error *fake_buffer_to_host(PJRT_Buffer_ToHostBuffer_Args *args)
{
    if (args->dst_size < args->src->bytes)
        return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, "no room");
    download_t *download = malloc(sizeof(*download));
    if (download == NULL) abort();
    fake_buffer_retain(args->src);
    args->event = fake_event_make();
    *download = (download_t){.source = args->src,
                             .done = fake_event_retain(args->event),
                             .destination = args->dst};
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_download, download) != 0) abort();
    pthread_detach(thread);
    return NULL;
}
