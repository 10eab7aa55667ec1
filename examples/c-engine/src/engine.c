/* A language model in plain C: one gated recurrent unit (arXiv 1406.1078) between two uses of an embedding.
 *
 * A weights file is "CGRU", the sizes of vocabulary and state as two 32-bit words, then 32-bit floats, all of them little-endian
 * as this machine is: the embedding (vocabulary x width), and for each of update, reset and candidate the weights of the input
 * and of the state (width x width each). */
#include "engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCABULARY_MAX = 1 << 20, WIDTH_MAX = 1 << 14, HEADER_BYTES = 12 };

struct engine {
    uint32_t vocabulary, width;
    float *embedding;
    /* Update, reset, candidate: input, then state. */
    float *gates[3][2];
};

struct sequence {
    uint32_t seen;
    float state[];
};

static size_t weights(uint32_t vocabulary, uint32_t width) {
    return (size_t)vocabulary * width + 6 * (size_t)width * width;
}

/* Opens a file and reads its header, which must match the file's size. */
static FILE *head(const char *path, uint32_t sizes[2], char *error, size_t error_bytes) {
    char magic[4];
    FILE *file = fopen(path, "rb");
    if (!file) {
        snprintf(error, error_bytes, "the file cannot be opened");
        return NULL;
    }
    if (fread(magic, 1, 4, file) != 4 || memcmp(magic, "CGRU", 4) != 0 || fread(sizes, 4, 2, file) != 2) {
        snprintf(error, error_bytes, "the file does not begin with CGRU and two sizes");
    } else if (sizes[0] == 0 || sizes[0] > VOCABULARY_MAX || sizes[1] == 0 || sizes[1] > WIDTH_MAX) {
        snprintf(error, error_bytes, "a vocabulary of %u and a width of %u are out of range", sizes[0], sizes[1]);
    } else if (fseek(file, 0, SEEK_END) != 0
               || (unsigned long long)ftell(file) != HEADER_BYTES + 4ULL * weights(sizes[0], sizes[1])) {
        snprintf(error, error_bytes, "the file is not as long as its sizes promise");
    } else if (fseek(file, HEADER_BYTES, SEEK_SET) == 0) {
        return file;
    } else {
        snprintf(error, error_bytes, "the file cannot be read");
    }
    fclose(file);
    return NULL;
}

int engine_sizes(const char *path, uint32_t *vocabulary, uint32_t *width, char *error, size_t error_bytes) {
    uint32_t sizes[2];
    FILE *file = head(path, sizes, error, error_bytes);
    if (!file)
        return -1;
    fclose(file);
    *vocabulary = sizes[0];
    *width = sizes[1];
    return 0;
}

engine *engine_open(const char *path, uint32_t *vocabulary, uint32_t *width, char *error, size_t error_bytes) {
    uint32_t sizes[2];
    FILE *file = head(path, sizes, error, error_bytes);
    if (!file)
        return NULL;
    size_t count = weights(sizes[0], sizes[1]), square = (size_t)sizes[1] * sizes[1];
    engine *opened = malloc(sizeof *opened);
    float *values = malloc(count * sizeof *values);
    int whole = opened && values && fread(values, sizeof *values, count, file) == count;
    fclose(file);
    if (!whole) {
        snprintf(error, error_bytes, "its %zu weights cannot be read", count);
        free(values);
        free(opened);
        return NULL;
    }
    opened->vocabulary = *vocabulary = sizes[0];
    opened->width = *width = sizes[1];
    opened->embedding = values;
    for (int gate = 0; gate < 3; gate++)
        for (int of = 0; of < 2; of++)
            opened->gates[gate][of] = values + (size_t)sizes[0] * sizes[1] + (2 * gate + of) * square;
    return opened;
}

void engine_close(engine *engine) {
    if (engine)
        free(engine->embedding);
    free(engine);
}

sequence *sequence_new(const engine *engine, const sequence *copied) {
    size_t bytes = sizeof(sequence) + engine->width * sizeof(float);
    /* A step uses three scratch rows after the state. */
    sequence *fresh = calloc(1, bytes + 3 * engine->width * sizeof(float));
    if (fresh && copied)
        memcpy(fresh, copied, bytes);
    return fresh;
}

void sequence_free(sequence *sequence) { free(sequence); }

uint32_t sequence_seen(const sequence *sequence) { return sequence->seen; }

static float product(const float *row, const float *x, uint32_t width) {
    float sum = 0;
    for (uint32_t i = 0; i < width; i++)
        sum += row[i] * x[i];
    return sum;
}

static float sigmoid(float x) { return 1 / (1 + expf(-x)); }

static void step(const engine *engine, sequence *sequence, uint32_t token) {
    uint32_t width = engine->width;
    const float *x = engine->embedding + (size_t)token * width;
    float *h = sequence->state, *update = h + width, *reset = update + width, *fresh = reset + width;
    for (uint32_t i = 0; i < width; i++) {
        size_t row = (size_t)i * width;
        float of[3][2];
        for (int gate = 0; gate < 3; gate++) {
            of[gate][0] = product(engine->gates[gate][0] + row, x, width);
            of[gate][1] = product(engine->gates[gate][1] + row, h, width);
        }
        update[i] = sigmoid(of[0][0] + of[0][1]);
        reset[i] = sigmoid(of[1][0] + of[1][1]);
        fresh[i] = tanhf(of[2][0] + reset[i] * of[2][1]);
    }
    for (uint32_t i = 0; i < width; i++)
        h[i] = (1 - update[i]) * fresh[i] + update[i] * h[i];
    sequence->seen++;
}

void sequence_read(const engine *engine, sequence *sequence, const uint32_t *tokens, uint32_t count, uint32_t rows,
                   float *logits) {
    for (uint32_t i = 0; i < count; i++) {
        step(engine, sequence, tokens[i]);
        if (i + rows < count)
            continue;
        for (uint32_t token = 0; token < engine->vocabulary; token++)
            *logits++ = product(engine->embedding + (size_t)token * engine->width, sequence->state, engine->width);
    }
}

size_t sequence_bytes(const engine *engine) { return sizeof(uint32_t) + engine->width * sizeof(float); }

void sequence_save(const engine *engine, const sequence *sequence, unsigned char *bytes) {
    memcpy(bytes, &sequence->seen, sizeof(uint32_t));
    memcpy(bytes + sizeof(uint32_t), sequence->state, engine->width * sizeof(float));
}

int sequence_load(const engine *engine, sequence *sequence, const unsigned char *bytes, size_t count) {
    if (count != sequence_bytes(engine))
        return -1;
    memcpy(&sequence->seen, bytes, sizeof(uint32_t));
    memcpy(sequence->state, bytes + sizeof(uint32_t), engine->width * sizeof(float));
    for (uint32_t i = 0; i < engine->width; i++)
        if (!isfinite(sequence->state[i]))
            return -1;
    return 0;
}
