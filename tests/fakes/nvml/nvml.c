/* A libnvidia-ml.so.1 without a card: answers from a script that may change while it runs.
 *
 * Built by tests/fakes/nvml/__init__.py and found by the real binding (pynvml) through LD_LIBRARY_PATH. The
 * script is the file FAKE_NVML, read anew at each call; each call is a line in FAKE_NVML_LOG.
 *
 *   driver 580.95.05                    what nvmlSystemGetDriverVersion says
 *   epoch 2                             handles taken in another epoch are lost (the module was reloaded)
 *   error FUNCTION CODE                 that function returns CODE
 *   delay FUNCTION MS                   it answers after MS milliseconds; it can be killed meanwhile
 *   crash FUNCTION                      it dies of SIGSEGV
 *   card UUID KEY=VALUE ..              total free reserved util temp power reasons cc (86) mig lost name (no blanks)
 *   mig UUID KEY=VALUE ..               a slice of the card before it
 *   process PID BYTES|na [graphics]     on the card or slice before it
 *
 * A key that is not given is "not supported", as on real cards.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15 };
#define CARDS 16
#define PROCESSES 64
#define NOT_AVAILABLE 0xffffffffffffffffULL

typedef struct {
    char uuid[96], name[96];
    long long total, free, reserved, util, temp, power, reasons, cc, mig, lost;
    int parent; /* index of the card of a slice, else -1 */
    int count;
    struct { unsigned pid; unsigned long long bytes; int graphics; } process[PROCESSES];
} Card;

typedef struct {
    char driver[96];
    long epoch, error, delay;
    int crash, count;
    Card card[CARDS];
} Script;

typedef struct { unsigned pid; unsigned long long bytes; unsigned instance, compute; } ProcessInfo;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned gpu, memory; } Utilization;

static int initialised = 0;

static void set(Card *card, const char *key, const char *value) {
    long long number = strtoll(value, NULL, 0);
    if (!strcmp(key, "name")) snprintf(card->name, sizeof card->name, "%s", value);
    else if (!strcmp(key, "total")) card->total = number;
    else if (!strcmp(key, "free")) card->free = number;
    else if (!strcmp(key, "reserved")) card->reserved = number;
    else if (!strcmp(key, "util")) card->util = number;
    else if (!strcmp(key, "temp")) card->temp = number;
    else if (!strcmp(key, "power")) card->power = number;
    else if (!strcmp(key, "reasons")) card->reasons = number;
    else if (!strcmp(key, "cc")) card->cc = number;
    else if (!strcmp(key, "mig")) card->mig = number;
    else if (!strcmp(key, "lost")) card->lost = number;
}

/* Reads the script for a call of `function`, notes the call, and waits or dies as asked. */
static Script *enter(const char *function) {
    static Script found;
    memset(&found, 0, sizeof found);
    const char *log = getenv("FAKE_NVML_LOG"), *path = getenv("FAKE_NVML");
    FILE *file = log ? fopen(log, "a") : NULL;
    if (file) { fprintf(file, "%s\n", function); fclose(file); }
    char line[1024];
    int owner = -1;
    Card *card = NULL;
    file = path ? fopen(path, "r") : NULL;
    while (file && fgets(line, sizeof line, file)) {
        char *rest = NULL, *word = strtok_r(line, " \n", &rest);
        if (!word || *word == '#') continue;
        char *first = strtok_r(NULL, " \n", &rest), *second = NULL;
        if (!first) continue;
        if (!strcmp(word, "driver")) snprintf(found.driver, sizeof found.driver, "%s", first);
        else if (!strcmp(word, "epoch")) found.epoch = atol(first);
        else if (!strcmp(word, "crash")) found.crash |= !strcmp(first, function);
        else if (!strcmp(word, "error") || !strcmp(word, "delay")) {
            second = strtok_r(NULL, " \n", &rest);
            if (second && !strcmp(first, function)) *(*word == 'e' ? &found.error : &found.delay) = atol(second);
        } else if ((!strcmp(word, "card") || !strcmp(word, "mig")) && found.count < CARDS) {
            card = &found.card[found.count];
            card->util = card->temp = card->power = card->reasons = card->cc = card->mig = -1; /* lost stays 0 */
            card->parent = *word == 'm' ? owner : -1;
            if (*word == 'c') owner = found.count;
            found.count++;
            snprintf(card->uuid, sizeof card->uuid, "%s", first);
            snprintf(card->name, sizeof card->name, "Fake");
            while ((second = strtok_r(NULL, " \n", &rest))) {
                char *equals = strchr(second, '=');
                if (equals) { *equals = 0; set(card, second, equals + 1); }
            }
        } else if (!strcmp(word, "process") && card && card->count < PROCESSES) {
            char *size = strtok_r(NULL, " \n", &rest), *kind = strtok_r(NULL, " \n", &rest);
            card->process[card->count].pid = (unsigned)atol(first);
            card->process[card->count].bytes = size && strcmp(size, "na") ? strtoull(size, NULL, 0) : NOT_AVAILABLE;
            card->process[card->count++].graphics = kind != NULL;
        }
    }
    if (file) fclose(file);
    if (found.delay) {
        struct timespec pause = { found.delay / 1000, (found.delay % 1000) * 1000000L };
        nanosleep(&pause, NULL);
    }
    if (found.crash) raise(SIGSEGV);
    return &found;
}

/* A handle is an epoch and an index, so that one from before a reload is known. */
static void *handle_of(Script *s, int index) { return (void *)(intptr_t)((s->epoch << 8) + index + 1); }

static int card_of(Script *s, void *handle, Card **card) {
    intptr_t value = (intptr_t)handle;
    int index = (int)(value & 0xff) - 1;
    if (!initialised) return UNINITIALIZED;
    if (value >> 8 != s->epoch) return LOST;
    if (index < 0 || index >= s->count) return INVALID;
    *card = &s->card[index];
    return (*card)->lost ? LOST : SUCCESS;
}

#define CALL(name)                                  \
    Script *s = enter(name);                        \
    if (s->error) return (int)s->error;
#define CARD(name)                                  \
    CALL(name)                                      \
    Card *card = NULL;                              \
    int bad = card_of(s, handle, &card);            \
    if (bad) return bad;

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    CALL("nvmlInit")
    initialised++;
    return SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) {
    CALL("nvmlShutdown")
    if (!initialised) return UNINITIALIZED;
    initialised--;
    return SUCCESS;
}
const char *nvmlErrorString(int code) { (void)code; return "fake error"; }

int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    CALL("nvmlSystemGetDriverVersion")
    snprintf(text, length, "%s", s->driver);
    return SUCCESS;
}
int nvmlSystemGetProcessName(unsigned pid, char *text, unsigned length) {
    CALL("nvmlSystemGetProcessName")
    snprintf(text, length, "/usr/bin/program-%u", pid);
    return SUCCESS;
}

static int nth(Script *s, int parent, unsigned wanted) {
    for (int i = 0; i < s->count; i++)
        if (s->card[i].parent == parent && wanted-- == 0) return i;
    return -1;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    CALL("nvmlDeviceGetCount")
    if (!initialised) return UNINITIALIZED;
    *count = 0;
    while (nth(s, -1, *count) >= 0) ++*count;
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    CALL("nvmlDeviceGetHandleByIndex")
    if (!initialised) return UNINITIALIZED;
    int found = nth(s, -1, index);
    if (found < 0) return INVALID;
    *handle = handle_of(s, found);
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
    CARD("nvmlDeviceGetMaxMigDeviceCount")
    *count = 7;
    return SUCCESS;
}
int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    CARD("nvmlDeviceGetMigMode")
    if (card->mig < 0) return NOT_SUPPORTED;
    *current = *pending = (unsigned)card->mig;
    return SUCCESS;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **slice) {
    CARD("nvmlDeviceGetMigDeviceHandleByIndex")
    int found = nth(s, (int)(card - s->card), index);
    if (found < 0) return NOT_FOUND;
    *slice = handle_of(s, found);
    return SUCCESS;
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned length) {
    CARD("nvmlDeviceGetUUID")
    snprintf(text, length, "%s", card->uuid);
    return SUCCESS;
}
int nvmlDeviceGetName(void *handle, char *text, unsigned length) {
    CARD("nvmlDeviceGetName")
    snprintf(text, length, "%s", card->name);
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
    CARD("nvmlDeviceGetMemoryInfo")
    /* The old call counts what the driver keeps for itself as used. */
    *memory = (Memory){ card->total, card->free, card->total - card->free };
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(void *handle, MemoryV2 *memory) {
    CARD("nvmlDeviceGetMemoryInfo_v2")
    memory->total = card->total;
    memory->reserved = card->reserved;
    memory->free = card->free;
    memory->used = card->total - card->free - card->reserved;
    return SUCCESS;
}
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    CARD("nvmlDeviceGetCudaComputeCapability")
    if (card->cc < 0) return NOT_SUPPORTED;
    *major = (int)(card->cc / 10);
    *minor = (int)(card->cc % 10);
    return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(void *handle, Utilization *rates) {
    CARD("nvmlDeviceGetUtilizationRates")
    if (card->util < 0) return NOT_SUPPORTED;
    *rates = (Utilization){ (unsigned)card->util, 0 };
    return SUCCESS;
}
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *value) {
    (void)sensor;
    CARD("nvmlDeviceGetTemperature")
    if (card->temp < 0) return NOT_SUPPORTED;
    *value = (unsigned)card->temp;
    return SUCCESS;
}
int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) {
    CARD("nvmlDeviceGetPowerUsage")
    if (card->power < 0) return NOT_SUPPORTED;
    *milliwatts = (unsigned)card->power;
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons) {
    CARD("nvmlDeviceGetCurrentClocksThrottleReasons")
    if (card->reasons < 0) return NOT_SUPPORTED;
    *reasons = (unsigned long long)card->reasons;
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksThrottleReasons(handle, reasons);
}

static int processes(Card *card, int graphics, unsigned *count, ProcessInfo *infos) {
    unsigned room = *count, found = 0;
    for (int i = 0; i < card->count; i++) found += card->process[i].graphics == graphics;
    *count = found;
    if (found == 0) return SUCCESS;
    if (!infos || room < found) return TOO_SMALL;
    found = 0;
    for (int i = 0; i < card->count; i++)
        if (card->process[i].graphics == graphics)
            infos[found++] = (ProcessInfo){ card->process[i].pid, card->process[i].bytes, 0xffffffff, 0xffffffff };
    return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, ProcessInfo *infos) {
    CARD("nvmlDeviceGetComputeRunningProcesses")
    return processes(card, 0, count, infos);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, ProcessInfo *infos) {
    CARD("nvmlDeviceGetGraphicsRunningProcesses")
    return processes(card, 1, count, infos);
}
