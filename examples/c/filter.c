/* Host functions for host_function.c, in a shared object that the client sends
 * to the workers. It does not link any library of Towpath. */
#include <stdio.h>
#include <string.h>
#include <towpath/host.h>

int keep_positive(tow_host_call_t *call);
int pad(tow_host_call_t *call);

/* (f32[n]) -> (f32[<=n]): the elements above zero. */
int keep_positive(tow_host_call_t *call)
{
    const tow_host_input_t *in = &call->inputs[0];
    tow_host_output_t *out = &call->outputs[0];
    const float *from = in->bytes;
    float *to = out->bytes;
    int64_t count = 0;
    for (int64_t i = 0; i < in->dims[0]; i++) {
        if (from[i] != from[i]) {
            snprintf(call->error, call->error_size,
                     "element %lld of shard %u is not a number", (long long)i,
                     call->shard);
            return 1;
        }
        if (from[i] > 0) to[count++] = from[i];
    }
    out->dims[0] = count; /* At most the bound. */
    return 0;
}

/* (f32[<=n]) -> (f32[n]): pads with zeros to the size that devices need. */
int pad(tow_host_call_t *call)
{
    const tow_host_input_t *in = &call->inputs[0];
    tow_host_output_t *out = &call->outputs[0];
    memset(out->bytes, 0, out->capacity);
    memcpy(out->bytes, in->bytes, in->size);
    return 0;
}
