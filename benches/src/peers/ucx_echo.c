// Echo calls over UCX active messages, for `farcall-bench peers`. `cargo xtask peers` compiles this.
//
//     ucx-echo server CORE SIZE WINDOW
//     ucx-echo client CORE SIZE WINDOW ADDRESS
//
// The server prints `ready ADDRESS`, with the address of its worker as hexadecimal digits. On its standard input, `rest`
// lets it sleep and `work` ends the rest. The client prints `ready` after the first answer. `turn NANOS` lets it call for
// that long, with WINDOW calls outstanding; `after NANOS` lets it wait, and then make one call. It answers both with
// `done CALLS NANOS SAMPLES`, and then the samples: the times of single calls in nanoseconds, as 32-bit numbers.
// Both end with their standard input.

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucp/api/ucp.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

enum { REQUEST = 1, REPLY = 2 };

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

// Copied from request to reply.
struct header {
    uint32_t call;
};

// A call at either end.
struct call {
    struct header header;
    ucp_ep_h reply_to;  // server
    void *held;         // server: the request's bytes, if UCX lends them
    char *buffer;       // for what comes by rendezvous
    size_t length;
    uint64_t started;   // client; 0: not timed
    int sending;        // client: the request's header is still needed
    int answered;       // client
};

static ucp_worker_h worker;
static struct call *calls;
static uint32_t *free_calls;
static uint32_t free_count, call_count;
static size_t size;
static char *pattern;

static void fail(const char *what, ucs_status_t status)
{
    fprintf(stderr, "ucx-echo: %s: %s\n", what, ucs_status_string(status));
    exit(1);
}

static void check(const char *what, ucs_status_t status)
{
    if (status != UCS_OK) {
        fail(what, status);
    }
}

static void *allocate(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, bytes ? bytes : 1) != 0) {
        fail("memory", UCS_ERR_NO_MEMORY);
    }
    // Touches all pages.
    memset(memory, 0, bytes);
    return memory;
}

static void make_calls(uint32_t count)
{
    calls = allocate(count * sizeof *calls);
    free_calls = allocate(count * sizeof *free_calls);
    call_count = count;
    for (uint32_t call = 0; call < count; call++) {
        calls[call].header.call = call;
        calls[call].buffer = allocate(size);
        free_calls[free_count++] = count - 1 - call;
    }
}

static struct call *take_call(void)
{
    if (free_count == 0) {
        fail("more calls than the window", UCS_ERR_NO_RESOURCE);
    }
    return &calls[free_calls[--free_count]];
}

static void free_call(struct call *call)
{
    free_calls[free_count++] = call - calls;
}

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

// ---- server

static void on_replied(void *request, ucs_status_t status, void *user_data)
{
    struct call *call = user_data;
    check("a reply", status);
    if (call->held != NULL) {
        ucp_am_data_release(worker, call->held);
    }
    ucp_request_free(request);
    free_call(call);
}

// Returns whether UCX still needs the bytes.
static int reply(struct call *call, const void *data)
{
    ucp_request_param_t how = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_replied,
        .user_data = call,
    };
    ucs_status_ptr_t sent = ucp_am_send_nbx(call->reply_to, REPLY, &call->header, sizeof call->header,
                                            data, call->length, &how);
    if (UCS_PTR_IS_ERR(sent)) {
        fail("cannot reply", UCS_PTR_STATUS(sent));
    }
    if (sent == NULL) {
        free_call(call);
    }
    return sent != NULL;
}

static void on_request_pulled(void *request, ucs_status_t status, size_t length, void *user_data)
{
    struct call *call = user_data;
    (void)length;
    check("a request by rendezvous", status);
    if (request != NULL) {
        ucp_request_free(request);
    }
    call->held = NULL;
    reply(call, call->buffer);
}

// Pulls what was sent by rendezvous into the call's buffer.
static void pull(struct call *call, void *descriptor, ucp_am_recv_data_nbx_callback_t then)
{
    ucp_request_param_t how = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.recv_am = then,
        .user_data = call,
    };
    ucs_status_ptr_t pulled =
        ucp_am_recv_data_nbx(worker, descriptor, call->buffer, call->length, &how);
    if (UCS_PTR_IS_ERR(pulled)) {
        fail("cannot pull", UCS_PTR_STATUS(pulled));
    }
    if (pulled == NULL) {
        then(NULL, UCS_OK, call->length, call);
    }
}

static ucs_status_t on_request(void *arg, const void *header, size_t header_length, void *data,
                               size_t length, const ucp_am_recv_param_t *how)
{
    (void)arg;
    if (header_length != sizeof(struct header) || length > size) {
        fail("a request of another length", UCS_ERR_INVALID_PARAM);
    }
    struct call *call = take_call();
    memcpy(&call->header, header, sizeof call->header);
    call->reply_to = how->reply_ep;
    call->length = length;
    if (how->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) {
        pull(call, data, on_request_pulled);
        return UCS_INPROGRESS;
    }
    if (how->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) {
        // UCX lends the bytes: the reply is sent from where they are.
        call->held = data;
        return reply(call, data) ? UCS_INPROGRESS : UCS_OK;
    }
    call->held = NULL;
    memcpy(call->buffer, data, length);
    reply(call, call->buffer);
    return UCS_OK;
}

enum { WORK, REST, QUIT };

static atomic_int order = WORK;
static pthread_mutex_t order_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t order_changed = PTHREAD_COND_INITIALIZER;

static void give_order(int what)
{
    pthread_mutex_lock(&order_mutex);
    atomic_store(&order, what);
    pthread_cond_signal(&order_changed);
    pthread_mutex_unlock(&order_mutex);
}

static void *read_orders(void *unused)
{
    char line[64];
    while (fgets(line, sizeof line, stdin) != NULL) {
        give_order(strncmp(line, "rest", 4) == 0 ? REST : WORK);
    }
    give_order(QUIT);
    return unused;
}

static void serve(void)
{
    ucp_address_t *address;
    size_t length;
    check("the worker's address", ucp_worker_get_address(worker, &address, &length));
    printf("ready ");
    for (size_t byte = 0; byte < length; byte++) {
        printf("%02x", ((unsigned char *)address)[byte]);
    }
    printf("\n");
    fflush(stdout);
    ucp_worker_release_address(worker, address);
    pthread_t reader;
    if (pthread_create(&reader, NULL, read_orders, NULL) != 0) {
        fail("cannot start a thread", UCS_ERR_NO_RESOURCE);
    }
    while (1) {
        int now = atomic_load_explicit(&order, memory_order_relaxed);
        if (now == WORK) {
            ucp_worker_progress(worker);
            continue;
        }
        if (now == QUIT) {
            break;
        }
        pthread_mutex_lock(&order_mutex);
        while (atomic_load(&order) == REST) {
            pthread_cond_wait(&order_changed, &order_mutex);
        }
        pthread_mutex_unlock(&order_mutex);
    }
    pthread_join(reader, NULL);
}

// ---- client

static ucp_ep_h server;
static uint32_t *samples;
static uint32_t sample_count;
static uint64_t answered_count, started_count;
static int compare_all = 1;
static uint32_t window;

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

static ucs_status_t on_reply(void *arg, const void *header, size_t header_length, void *data,
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

static void obey(const char *address)
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

int main(int count, char **words)
{
    int is_client = count == 6 && strcmp(words[1], "client") == 0;
    if (!is_client && !(count == 5 && strcmp(words[1], "server") == 0)) {
        fprintf(stderr, "ucx-echo server CORE SIZE WINDOW | client CORE SIZE WINDOW ADDRESS\n");
        return 2;
    }
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(atoi(words[2]), &cores);
    if (sched_setaffinity(0, sizeof cores, &cores) != 0) {
        perror("ucx-echo: cannot pin to the core");
        return 1;
    }
    size = strtoull(words[3], NULL, 10);
    window = strtoul(words[4], NULL, 10);
    pattern = allocate(size);
    for (size_t byte = 0; byte < size; byte++) {
        pattern[byte] = byte % 251;
    }
    // The server may still send a reply while its client has received it, and started the next call.
    make_calls(is_client ? window : 2 * window);

    ucp_params_t features = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features = UCP_FEATURE_AM,
    };
    ucp_worker_params_t threads = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
    };
    ucp_context_h context;
    check("no context", ucp_init(&features, NULL, &context));
    check("no worker", ucp_worker_create(context, &threads, &worker));
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB,
        .id = is_client ? REPLY : REQUEST,
        .cb = is_client ? on_reply : on_request,
    };
    check("no handler", ucp_worker_set_am_recv_handler(worker, &handler));
    if (is_client) {
        obey(words[5]);
    } else {
        serve();
    }
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    return 0;
}
