// The client: keeps a window of requests outstanding, and times them.

#define _GNU_SOURCE
#include "echo.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

// With many outstanding calls, one in this many is timed, as for the other peers.
enum { TIMED_EACH = 16 };

// The first calls of a turn wake up the server and are not counted; their answers are compared as a whole.
#define UNCOUNTED_NANOS 1000000ull

// Empty turns after which the clock is read.
enum { TURNS_PER_CLOCK = 1024 };

// An answer that takes longer is an error.
#define ANSWER_BOUND_NANOS 10000000000ull

// More samples than calls in a second.
enum { MOST_SAMPLES = 1 << 22 };

// How many bytes at each end of an answer are compared in turns that count.
enum { END_BYTES = 64 };

static uint64_t nanos_of_system(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

// The clock of measurements: the counter that the other peers' clock reads too.
#if defined(__x86_64__)
static double nanos_per_tick;

static uint64_t ticks(void)
{
    return __rdtsc();
}

static void calibrate(void)
{
    uint64_t nanos = nanos_of_system(), begin = ticks();
    while (nanos_of_system() - nanos < 50000000) {
    }
    uint64_t end = ticks();
    nanos_per_tick = (double)(nanos_of_system() - nanos) / (end - begin);
}
#else
static double nanos_per_tick = 1;

static uint64_t ticks(void)
{
    return nanos_of_system();
}

static void calibrate(void)
{
}
#endif

static uint64_t nanos_between(uint64_t before, uint64_t after)
{
    return after > before ? (uint64_t)((after - before) * nanos_per_tick) : 0;
}

static ucp_ep_h server;
static uint32_t *samples;
static uint32_t sample_count;
static uint64_t answered_count, started_count;
static int compare_all = 1;

static void free_if_done(struct call *call)
{
    if (call->answered && !call->sending) {
        free_call(call);
    }
}

static void answered(struct call *call, const char *data, size_t length)
{
    if (call->started != 0 && sample_count < MOST_SAMPLES) {
        samples[sample_count++] = nanos_between(call->started, ticks());
    }
    size_t ends = length < 2 * END_BYTES ? length : END_BYTES;
    int right = length == size;
    if (compare_all) {
        right = right && memcmp(data, pattern, length) == 0;
    } else {
        right = right && memcmp(data, pattern, ends) == 0
                && memcmp(data + length - ends, pattern + length - ends, ends) == 0;
    }
    if (!right) {
        fail("an answer differs from what was sent", UCS_ERR_IO_ERROR);
    }
    answered_count++;
    call->answered = 1;
    free_if_done(call);
}

static void on_reply_pulled(void *request, ucs_status_t status, size_t length, void *user_data)
{
    struct call *call = user_data;
    check("an answer by rendezvous", status);
    if (request != NULL) {
        ucp_request_free(request);
    }
    answered(call, call->buffer, length);
}

ucs_status_t on_reply(void *arg, const void *header, size_t header_length, void *data,
                             size_t length, const ucp_am_recv_param_t *how)
{
    (void)arg;
    struct header which;
    if (header_length != sizeof which || length > size) {
        fail("an answer of another length", UCS_ERR_INVALID_PARAM);
    }
    memcpy(&which, header, sizeof which);
    if (which.call >= call_count || calls[which.call].answered) {
        fail("an answer to no call", UCS_ERR_INVALID_PARAM);
    }
    struct call *call = &calls[which.call];
    if (how->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) {
        call->length = length;
        pull(call, data, on_reply_pulled);
        return UCS_INPROGRESS;
    }
    if (keeps_answers) {
        memcpy(call->buffer, data, length);
        data = call->buffer;
    }
    answered(call, data, length);
    return UCS_OK;
}

static void on_sent(void *request, ucs_status_t status, void *user_data)
{
    struct call *call = user_data;
    check("a request", status);
    ucp_request_free(request);
    call->sending = 0;
    free_if_done(call);
}

static void start_call(void)
{
    struct call *call = take_call();
    ucp_request_param_t how = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .cb.send = on_sent,
        .user_data = call,
        .flags = UCP_AM_SEND_FLAG_REPLY,
    };
    call->started = window == 1 || started_count % TIMED_EACH == 0 ? ticks() : 0;
    started_count++;
    call->answered = 0;
    call->sending = 1;
    ucs_status_ptr_t sent = ucp_am_send_nbx(server, REQUEST, &call->header, sizeof call->header,
                                            pattern, size, &how);
    if (UCS_PTR_IS_ERR(sent)) {
        fail("cannot call", UCS_PTR_STATUS(sent));
    }
    if (sent == NULL) {
        call->sending = 0;
        free_if_done(call);
    }
}

static uint64_t ticks_of(uint64_t nanos)
{
    return (uint64_t)(nanos / nanos_per_tick);
}

// Calls until the time is over, at least once. Returns the nanoseconds that it took.
static uint64_t call_for(uint64_t nanos)
{
    uint64_t begin = ticks(), now = begin, end = begin + ticks_of(nanos);
    uint64_t give_up = end + ticks_of(ANSWER_BOUND_NANOS);
    unsigned idle = 0;
    do {
        if (now < end || now == begin) {
            while (free_count > 0) {
                start_call();
            }
        }
        uint64_t before = answered_count;
        ucp_worker_progress(worker);
        if (answered_count == before) {
            idle++;
        } else if (window == 1 || answered_count % TIMED_EACH == 0) {
            now = ticks();
        }
        if (idle >= TURNS_PER_CLOCK) {
            idle = 0;
            now = ticks();
        }
        if (now > give_up) {
            fail("no answer", UCS_ERR_TIMED_OUT);
        }
    } while (now < end || free_count < call_count);
    return nanos_between(begin, ticks());
}

static void report(uint64_t count, uint64_t nanos)
{
    printf("done %llu %llu %u\n", (unsigned long long)count, (unsigned long long)nanos, sample_count);
    fwrite(samples, sizeof *samples, sample_count, stdout);
    fflush(stdout);
}

static void turn(uint64_t nanos)
{
    compare_all = 1;
    call_for(UNCOUNTED_NANOS);
    compare_all = 0;
    sample_count = 0;
    uint64_t before = answered_count;
    uint64_t took = call_for(nanos);
    report(answered_count - before, took);
}

static void call_after(uint64_t nanos)
{
    compare_all = 1;
    call_for(0);
    struct timespec silence = {.tv_sec = nanos / 1000000000, .tv_nsec = nanos % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &silence, NULL);
    sample_count = 0;
    report(1, call_for(0));
}

static void connect_to(const char *digits)
{
    size_t length = strlen(digits) / 2;
    unsigned char *address = allocate(length);
    for (size_t byte = 0; byte < length; byte++) {
        unsigned value = 0;
        if (sscanf(digits + 2 * byte, "%2x", &value) != 1) {
            fail("the server's address", UCS_ERR_INVALID_PARAM);
        }
        address[byte] = value;
    }
    ucp_ep_params_t how = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
        .address = (ucp_address_t *)address,
    };
    check("cannot connect", ucp_ep_create(worker, &how, &server));
    free(address);
}

void obey(const char *address)
{
    calibrate();
    samples = allocate(MOST_SAMPLES * sizeof *samples);
    connect_to(address);
    call_for(0);
    printf("ready\n");
    fflush(stdout);
    char line[64];
    unsigned long long nanos;
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (sscanf(line, "turn %llu", &nanos) == 1) {
            turn(nanos);
        } else if (sscanf(line, "after %llu", &nanos) == 1) {
            call_after(nanos);
        } else {
            fail("an unknown order", UCS_ERR_INVALID_PARAM);
        }
    }
}
