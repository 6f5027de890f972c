/* Host functions that succeed and misbehave: (f32[n]) -> (f32[<=n]). */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <towpath/host.h>
#include <unistd.h>

int keep(tow_host_call_t *call);
int widen(tow_host_call_t *call);
int fail_one(tow_host_call_t *call);
int crash(tow_host_call_t *call);
int leave(tow_host_call_t *call);
int hang(tow_host_call_t *call);
int lie(tow_host_call_t *call);
int babble(tow_host_call_t *call);

/* Keeps as many elements as the value of the first one. */
int keep(tow_host_call_t *call)
{
    const float *from = call->inputs[0].bytes;
    const int64_t count = (int64_t)from[0];
    if (count < 0 || count > call->inputs[0].dims[0]) {
        snprintf(call->error, call->error_size, "cannot keep %lld",
                 (long long)count);
        return 7;
    }
    memcpy(call->outputs[0].bytes, from, (size_t)count * sizeof(float));
    call->outputs[0].dims[0] = count;
    return 0;
}

/* (f32[<=n]) -> (f32[n]). */
int widen(tow_host_call_t *call)
{
    memset(call->outputs[0].bytes, 0, call->outputs[0].capacity);
    memcpy(call->outputs[0].bytes, call->inputs[0].bytes, call->inputs[0].size);
    return 0;
}

int fail_one(tow_host_call_t *call)
{
    call->outputs[0].dims[0] = 0;
    if (call->shard != 1) return 0;
    snprintf(call->error, call->error_size, "shard %u is out of sorts",
             call->shard);
    return 42;
}

int crash(tow_host_call_t *call)
{
    (void)call;
    fprintf(stderr, "here it comes\n");
    signal(SIGSEGV, SIG_DFL); /* Not the handler of a sanitizer, which exits. */
    raise(SIGSEGV);
    return 0;
}

int leave(tow_host_call_t *call)
{
    (void)call;
    exit(3);
}

int hang(tow_host_call_t *call)
{
    (void)call;
    for (;;)
        pause();
}

int lie(tow_host_call_t *call)
{
    call->outputs[0].dims[0] = call->inputs[0].dims[0] + 1;
    return 0;
}

/* Writes invalid bytes into the socket of its process. */
int babble(tow_host_call_t *call)
{
    char nonsense[4096] = {0};
    (void)call;
    if (write(3, nonsense, sizeof(nonsense)) < 0) return 1;
    return 0;
}
