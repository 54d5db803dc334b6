/* Products of a few rows with large weights on a processor, and a decode pass of a Llama-shaped model, or of a head of one such
 * layer, as one call. See runtime/compiled.py and runtime/decode_pass.py.
 *
 * Sums are float32; weights, cache and results are of the model's type (float32 or bfloat16). Every sum runs in an order that depends
 * on nothing but the token's own context: not on the other tokens of the pass, their number or their order. So a token's logits have
 * the same bits in plain decoding, in a verified chain and on a tree's path.
 *
 * Work is split by outputs: each thread computes its share of a product's columns or of the attention's heads; a barrier follows.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <omp.h>
#if defined __AVX512F__ || defined __AVX2__
#include <immintrin.h>
#endif
#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* W: floats in a vector, as wide as the processor's registers; all widths but the number of a product's outputs are multiples of it.
 * (Wider than the registers, gcc 12 takes minutes and a gigabyte for this file.) A tile has at most TILE_ROWS rows; tiles of at most
 * FEW rows read four blocks of weights side by side, others two: as many as leave room in the registers, 32 or 16. */
#ifdef __AVX512F__
enum { W = 16, TILE_ROWS = 12, FEW = 4 };
#else
enum { W = 8, TILE_ROWS = 6, FEW = 2 };
#endif
int64_t vector_width(void) { return W; }
typedef float vec __attribute__((vector_size(4 * W), aligned(4)));
typedef uint32_t bits __attribute__((vector_size(4 * W), aligned(4)));
typedef int32_t lanes __attribute__((vector_size(4 * W), aligned(4)));
typedef uint16_t half __attribute__((vector_size(2 * W), aligned(2)));
typedef uint8_t bytes __attribute__((vector_size(W), aligned(1)));
#define INLINE static inline __attribute__((always_inline))

/* How a product's numbers lie. WHOLE: float32. WIDENED: bfloat16 weights, float32 inputs. PAIRED: both bfloat16, multiplied by the
 * processor's own instructions for pairs of them. EIGHT: weights of 8 bits, inputs as bfloat16 weights have them, which the product
 * rounds to 8 bits. */
enum { WHOLE, WIDENED, PAIRED, EIGHT };
#ifdef __AVX512BF16__
enum { OF_BF16 = PAIRED };
#else
enum { OF_BF16 = WIDENED };
#endif

/* Four products of 8 bits are added by one instruction, which wants the inputs moved up to 0 to 255, or by three for whole numbers with
 * their signs: weights lose theirs to the inputs, and no sum of two products is above 2 * 127 * 127, so 16 bits hold it. */
#if defined __AVX512VNNI__ && defined __AVX512BF16__
enum { OF_EIGHT = EIGHT, MOVED_UP = 128 };
#define PLUS_FOURS(acc, four, weights) (lanes)_mm512_dpbusd_epi32((__m512i)(acc), _mm512_set1_epi32(four), (__m512i)(weights))
#define TO_WHOLE(x) (lanes)_mm512_cvtps_epi32((__m512)(x))
#elif defined __AVX2__ && !defined __AVX512F__
enum { OF_EIGHT = EIGHT, MOVED_UP = 0 };
#define PLUS_FOURS(acc, four, weights) \
    (acc) + (lanes)_mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)(weights)), \
                                                          _mm256_sign_epi8(_mm256_set1_epi32(four), (__m256i)(weights))), \
                                     _mm256_set1_epi16(1))
#define TO_WHOLE(x) (lanes)_mm256_cvtps_epi32((__m256)(x))
#else
enum { OF_EIGHT = OF_BF16, MOVED_UP = 0 }; /* no code for it: nothing asks for it */
#endif
int64_t has_eight_bits(void) { return OF_EIGHT == EIGHT; }

/* Weights [out, in] of a product lie in blocks of W outputs, their last padded: float32 as [out / W, in, W], bfloat16 as
 * [out / W, in / 2, W, 2], 8 bits as [out / W, in / 4, W, 4], each block with W scales (float32) behind it and 128 times the sums of its
 * W outputs' weights (int32). */
typedef struct {
    const void *norm_1, *qkv, *qkv_bias, *q_norm, *k_norm, *out, *out_bias, *norm_2, *gate_up, *down;
    void *keys, *values;    /* [B, K, S, d] */
    int64_t pattern;        /* which of the pass's masks is its own */
    void *aux_hidden_state; /* hidden states before this layer are written here, one every `aux_width`; null: not needed */
} Layer;

typedef struct {
    int64_t layers, D, H, K, d, I, V, bf16, eight_bits, threads; /* eight_bits: of the products' weights */
    double eps;
    const void *embedding, *norm, *head;
    const float *cos, *sin; /* [S, d]; the sign of rotate_half is in `sin` */
    Layer *layer;
    /* of one pass */
    int64_t B, n, end, S, mask_rows, outputs, aux_width, first_row; /* mask_rows: B or 1; first_row: the first one's in the cache */
    const uint8_t **masks; /* of each pattern [mask_rows, n, end]: which slots a token sees; null: all */
    const int64_t *tokens, *positions, *slots; /* [B * n] */
    /* Without positions the pass makes them, slots and masks: all rows' tokens stand behind contexts of one length, end - n, and see them,
     * themselves and their ancestors. parents: [B * n], of each token among those of its row, before it; -1: the context. Null: a chain. */
    const int64_t *parents;
    const int64_t *rows; /* [outputs]: the tokens whose logits are computed */
    /* Of a head that follows another model: the hidden states before its layer, and what its attention reads. Null for
     * a model: it begins with embeddings, and attention reads the normed hidden states. With two norms, attention reads
     * the normed embedding and the normed hidden states, side by side (R = 2 D). With `fc`, [F, D] in blocks, the hidden
     * states are its product with `input`. */
    const void *input, *reads, *embedding_norm, *input_norm, *fc; /* [B * n, D or F], [B * n, R], [D], [D] */
    int64_t R, F;
    void *hidden, *logits; /* [B * n, D] after the final norm, a head's before it; [outputs, V] */
    int64_t *choices, words; /* [outputs]: of the first `words` tokens the one with the highest logit; null: not needed */
    float *scratch;
} Pass;

INLINE vec load(const void *from, int64_t at, int bf16) {
    if (!bf16) return *(const vec *)((const float *)from + at);
#ifdef __AVX512F__ /* as one instruction, for which the compiler takes five */
    return (vec)((bits)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)((const uint16_t *)from + at))) << 16);
#elif defined __AVX2__
    return (vec)((bits)_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)((const uint16_t *)from + at))) << 16);
#else
    return (vec)(__builtin_convertvector(*(const half *)((const uint16_t *)from + at), bits) << 16);
#endif
}

INLINE void store(void *to, int64_t at, vec x, int bf16) {
    if (!bf16) { *(vec *)((float *)to + at) = x; return; }
#ifdef __AVX512BF16__ /* to the nearest, ties to even; numbers below 2^-126 become 0 */
    *(half *)((uint16_t *)to + at) = (half)_mm512_cvtneps_pbh((__m512)x);
#else
    bits wide = (bits)x; /* the same, but for such numbers */
    *(half *)((uint16_t *)to + at) = __builtin_convertvector((wide + 0x7fff + ((wide >> 16) & 1)) >> 16, half);
#endif
}

/* Of each place x's number where `which` is all ones, y's where it is 0. */
INLINE vec choose(lanes which, vec x, vec y) { return (vec)(((lanes)x & which) | ((lanes)y & ~which)); }

/* e^x to float32's precision; 0 below -87, and e^88 above 88, since beyond it e^x is no float32. */
INLINE vec exponential(vec x) {
    const vec most = (vec){0} + 88.0f;
    lanes seen = x > -87.0f;
    x = choose(x > most, most, x);
    vec within = (vec)((lanes)x & seen), times = within * 1.44269504f + 12582912.0f; /* + 1.5 * 2^23 rounds to a whole number */
    lanes whole = (lanes)times - 0x4b400000;
    times -= 12582912.0f;
    vec rest = within - times * 0.693359375f + times * 2.12194440e-4f;
    vec y = 1.9875691500e-4f * rest + 1.3981999507e-3f;
    y = y * rest + 8.3334519073e-3f;
    y = y * rest + 4.1665795894e-2f;
    y = y * rest + 1.6666665459e-1f;
    y = y * rest + 5.0000001201e-1f;
    y = y * (rest * rest) + rest + 1.0f;
    return (vec)(((lanes)y + (whole << 23)) & seen);
}

/* The sums of W vectors' numbers, side by side: each adds the numbers W / 2 apart, then half as far, down to neighbours. */
INLINE vec sums(vec x[W]) {
#define FOLD(count, low, high) \
    for (int i = 0; i < count; i++) x[i] = __builtin_shuffle(x[i], x[i + count], low) + __builtin_shuffle(x[i], x[i + count], high);
#ifdef __AVX512F__
    FOLD(8, ((lanes){0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23}),
         ((lanes){8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31}))
    FOLD(4, ((lanes){0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27}),
         ((lanes){4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31}))
    FOLD(2, ((lanes){0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29}),
         ((lanes){2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31}))
    FOLD(1, ((lanes){0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30}),
         ((lanes){1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31}))
#else
    FOLD(4, ((lanes){0, 1, 2, 3, 8, 9, 10, 11}), ((lanes){4, 5, 6, 7, 12, 13, 14, 15}))
    FOLD(2, ((lanes){0, 1, 8, 9, 4, 5, 12, 13}), ((lanes){2, 3, 10, 11, 6, 7, 14, 15}))
    FOLD(1, ((lanes){0, 8, 2, 10, 4, 12, 6, 14}), ((lanes){1, 9, 3, 11, 5, 13, 7, 15}))
#endif
#undef FOLD
    return x[0];
}

INLINE float sum(vec x) {
    vec alone[W] = {x};
    return sums(alone)[0];
}

/* acc + x * y, rounded once wherever it stands: left to itself, gcc rounds twice in some loops for some processors. */
INLINE vec plus(vec acc, vec x, vec y) {
#ifdef __AVX512F__
    return (vec)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)acc);
#elif defined __AVX2__ && defined __FMA__
    return (vec)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)acc);
#else
    return acc + x * y;
#endif
}

#define EACH(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < count; i++)

/* RMSNorm (1910.07467) of the D numbers of x, of the weight's type where `typed`, else float32, that begin at `from`; these themselves
 * without a weight. */
INLINE void rms_norm_of(void *to, int64_t at, const void *x, int64_t from, int typed, const void *weight, int64_t D, double eps, int bf16,
                        int as_bf16) {
    const int type = typed && bf16;
    if (!weight) {
        for (int64_t i = 0; i < D; i += W) store(to, at + i, load(x, from + i, type), as_bf16);
        return;
    }
    vec squares[4] = {{0}}; /* four sums, so that no addition waits for the one before */
    int64_t done = 0;
    for (; done + 4 * W <= D; done += 4 * W)
        EACH(c, 4) squares[c] += load(x, from + done + c * W, type) * load(x, from + done + c * W, type);
    for (; done < D; done += W) squares[0] += load(x, from + done, type) * load(x, from + done, type);
    float scale = 1.0f / sqrtf(sum((squares[0] + squares[1]) + (squares[2] + squares[3])) / D + (float)eps);
    for (int64_t i = 0; i < D; i += W) store(to, at + i, load(x, from + i, type) * scale * load(weight, i, bf16), as_bf16);
}

INLINE void rms_norm(void *to, int64_t at, const float *x, const void *weight, int64_t D, double eps, int bf16, int as_bf16) {
    rms_norm_of(to, at, x, 0, 0, weight, D, eps, bf16, as_bf16);
}

/* R rows of x [R, in] against N blocks of weights, each of the R * N accumulators in a register: y[r][c] = sum over k of
 * x[r][k] w[c][k]. Meanwhile what lies `ahead` bytes behind these weights is fetched, at 1 / 2^slower of their pace: reading and
 * multiplying go side by side. */
#define TILE(R, N) \
    INLINE void tile_##R##_##N(vec y[][4], const void *x, const char *const *w, int64_t in, int64_t ahead, int slower, int kind) { \
        vec acc[R][N]; \
        const char *at[N]; \
        EACH(c, N) at[c] = w[c]; \
        EACH(r, R) EACH(c, N) acc[r][c] = (vec){0}; \
        for (int64_t k = 0, steps = kind == WHOLE ? in : in / 2; k < steps; k++) { \
            EACH(c, N) __builtin_prefetch(at[c] + ((k * 4 * W) >> slower) + ahead, 0, 2); \
            if (kind == WIDENED) { \
                vec weight[N]; \
                EACH(c, N) weight[c] = (vec)(*(const bits *)(at[c] + k * 4 * W) << 16); \
                EACH(r, R) { float number = ((const float *)x)[r * in + 2 * k]; EACH(c, N) acc[r][c] += number * weight[c]; } \
                __asm__ volatile("" ::: "memory"); /* else more numbers are held at a time than there are registers */ \
                EACH(c, N) weight[c] = (vec)(*(const bits *)(at[c] + k * 4 * W) & 0xffff0000); \
                EACH(r, R) { float number = ((const float *)x)[r * in + 2 * k + 1]; EACH(c, N) acc[r][c] += number * weight[c]; } \
                __asm__ volatile("" ::: "memory"); \
            } else { \
                bits weight[N]; \
                EACH(c, N) weight[c] = *(const bits *)(at[c] + k * 4 * W); \
                EACH(r, R) EACH(c, N) { \
                    if (kind == WHOLE) acc[r][c] += ((const float *)x)[r * in + k] * (vec)weight[c]; \
                    else acc[r][c] = PAIRS(acc[r][c], ((const int32_t *)x)[r * in / 2 + k], weight[c]); \
                } \
            } \
        } \
        EACH(r, R) EACH(c, N) y[r][c] = acc[r][c]; \
    }
#ifdef __AVX512BF16__
#define BOTH(acc, x, y) (vec)_mm512_dpbf16_ps((__m512)(acc), (__m512bh)(x), (__m512bh)(y))
#define PAIRS(acc, pair, weights) BOTH(acc, _mm512_set1_epi32(pair), weights)
#else
#define BOTH(acc, x, y) (acc)
#define PAIRS(acc, pair, weights) (acc)
#endif
#ifdef __AVX512F__
#define TILES(EACH_TILE) \
    EACH_TILE(1, 4) EACH_TILE(2, 4) EACH_TILE(3, 4) EACH_TILE(4, 4) EACH_TILE(5, 2) EACH_TILE(6, 2) EACH_TILE(7, 2) EACH_TILE(8, 2) \
    EACH_TILE(9, 2) EACH_TILE(10, 2) EACH_TILE(11, 2) EACH_TILE(12, 2)
#else
#define TILES(EACH_TILE) EACH_TILE(1, 4) EACH_TILE(2, 4) EACH_TILE(3, 2) EACH_TILE(4, 2) EACH_TILE(5, 2) EACH_TILE(6, 2)
#endif
TILES(TILE)

/* The same of 8 bits. A row of x has its `in` numbers, moved up by MOVED_UP, and then its scale; a block's step has four inputs. */
enum { BEHIND_ROW = 64 }; /* bytes */
#define TILE_EIGHT(R, N) \
    INLINE void eight_##R##_##N(vec y[][4], const char *x, const char *const *w, int64_t in, int64_t ahead, int slower) { \
        lanes acc[R][N]; \
        EACH(r, R) EACH(c, N) acc[r][c] = (lanes){0}; \
        for (int64_t k = 0; k < in / 4; k++) { \
            lanes weight[N]; \
            EACH(c, N) __builtin_prefetch(w[c] + ((k * 4 * W) >> slower) + ahead, 0, 2); \
            EACH(c, N) weight[c] = *(const lanes *)(w[c] + k * 4 * W); \
            EACH(r, R) { \
                const int32_t four = ((const int32_t *)(x + r * (in + BEHIND_ROW)))[k]; \
                EACH(c, N) acc[r][c] = PLUS_FOURS(acc[r][c], four, weight[c]); \
            } \
        } \
        EACH(r, R) EACH(c, N) { \
            const char *behind = w[c] + in * W; \
            const lanes moved = MOVED_UP ? acc[r][c] - *(const lanes *)(behind + 4 * W) : acc[r][c]; \
            const float scale = *(const float *)(x + r * (in + BEHIND_ROW) + in); \
            y[r][c] = __builtin_convertvector(moved, vec) * (*(const vec *)behind * scale); \
        } \
    }
#ifdef PLUS_FOURS
TILES(TILE_EIGHT)

/* Rows of x [rows, in], each with 8 bits and a scale of its own: the highest number becomes 127. */
static void round_rows(char *to, const char *x, int64_t rows, int64_t in) {
    for (int64_t r = 0; r < rows; r++, to += in + BEHIND_ROW) {
        vec highest = {0};
        for (int64_t i = 0; i < in; i += W) {
            const vec y = load(x, r * in + i, OF_BF16 == PAIRED), size = (vec)((bits)y & 0x7fffffff);
            highest = choose(size > highest, size, highest);
        }
        float most = 1e-30f;
        EACH(i, W) most = highest[i] > most ? highest[i] : most;
        for (int64_t i = 0; i < in; i += W)
            *(bytes *)(to + i) = __builtin_convertvector(TO_WHOLE(load(x, r * in + i, OF_BF16 == PAIRED) * (127.0f / most)) + MOVED_UP, bytes);
        *(float *)(to + in) = most / 127.0f;
    }
}
INLINE void tile_eight(vec y[][4], const char *x, int64_t rows, const char *const *w, int64_t in, int64_t ahead, int slower) {
#define CASE(R, N) case R: eight_##R##_##N(y, x, w, in, ahead, slower); break;
    switch (rows) { TILES(CASE) }
#undef CASE
}
#else
static void round_rows(char *to, const char *x, int64_t rows, int64_t in) {}
static void tile_eight(vec y[][4], const char *x, int64_t rows, const char *const *w, int64_t in, int64_t ahead, int slower) {}
#endif

/* Where the processor has matrix registers (AMX) for bfloat16, products with a multiple of 32 inputs use them: some rows take hardly longer
 * than one, for which the weights have to be read as well. A part has MATRIX_ROWS rows at most. */
enum { MATRIX_ROWS = 32 };
#ifdef __AMX_BF16__
static int has_matrices(void) { /* Linux grants the registers to a process that asks */
    static int granted = -1;
    if (granted < 0) granted = !syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XTILEDATA */);
    return granted;
}

/* Registers 0 to 4 get so many rows: in products 0 to 3 are sums and 4 inputs. 5 to 7 have 16: weights. */
static void shape_matrices(int64_t rows) {
    struct { uint8_t palette, unused[15]; uint16_t bytes[16]; uint8_t rows[16]; } shape = {.palette = 1};
    EACH(i, 8) { shape.bytes[i] = 64; shape.rows[i] = i < 5 ? rows : 16; }
    __asm__ volatile("" ::"r"(&shape) : "memory"); /* gcc 12 does not know that the instruction reads all of it */
    _tile_loadconfig(&shape);
}
static void free_matrices(void) { _tile_release(); }

/* As `tile` with four blocks, for as many rows as the registers were shaped for. Blocks lie as the instruction wants its second factor:
 * 16 pairs of inputs of W outputs are a register. */
static __attribute__((noinline)) void matrix_tile(vec y[][4], const char *x, const char *const *w, int64_t in, int64_t ahead) {
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    for (int64_t k = 0; k < in / 32; k++) {
        EACH(c, 4) for (int line = 0; line < 1024; line += 64) { /* from memory, and from the outer cache */
            __builtin_prefetch(w[c] + k * 1024 + line + ahead, 0, 2);
            __builtin_prefetch(w[c] + k * 1024 + line + 2048, 0, 3);
        }
        _tile_loadd(4, x + k * 64, in * 2);
        _tile_loadd(5, w[0] + k * 1024, 64); _tile_loadd(6, w[1] + k * 1024, 64); _tile_loadd(7, w[2] + k * 1024, 64);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(5, w[3] + k * 1024, 64);
        _tile_dpbf16ps(1, 4, 6); _tile_dpbf16ps(2, 4, 7); _tile_dpbf16ps(3, 4, 5);
    }
    _tile_stored(0, &y[0][0], sizeof *y); _tile_stored(1, &y[0][1], sizeof *y);
    _tile_stored(2, &y[0][2], sizeof *y); _tile_stored(3, &y[0][3], sizeof *y);
}

/* As `tile` with two blocks, for two halves of so many rows, the second beginning with row `second`. */
static __attribute__((noinline)) void matrix_tiles(vec y[][4], const char *x, int64_t second, const char *const *w, int64_t in,
                                                   int64_t ahead, int slower) {
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    for (int64_t k = 0; k < in / 32; k++) {
        EACH(c, 2) for (int line = 0; line < 1024 >> slower; line += 64) __builtin_prefetch(w[c] + ((k * 1024) >> slower) + line + ahead, 0, 2);
        _tile_loadd(4, x + k * 64, in * 2);
        _tile_loadd(6, w[0] + k * 1024, 64); _tile_loadd(7, w[1] + k * 1024, 64);
        _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(4, x + second * in * 2 + k * 64, in * 2);
        _tile_dpbf16ps(2, 4, 6); _tile_dpbf16ps(3, 4, 7);
    }
    _tile_stored(0, &y[0][0], sizeof *y); _tile_stored(1, &y[0][1], sizeof *y);
    _tile_stored(2, &y[second][0], sizeof *y); _tile_stored(3, &y[second][1], sizeof *y);
}

/* The same sums in the same order without these registers, which is as fast for a row or two: for 16 pairs of inputs at a time, what the
 * first of each pair give and what the second give, then both together. */
#define AS_MATRIX(R) \
    static __attribute__((noinline)) void as_matrix_##R(vec y[][4], const char *x, const char *const *w, int64_t in, int64_t ahead) { \
        vec acc[R][4]; \
        EACH(r, R) EACH(c, 4) acc[r][c] = (vec){0}; \
        for (int64_t from = 0; from < in / 2; from += 16) { \
            vec first[R][4], second[R][4]; \
            EACH(r, R) EACH(c, 4) first[r][c] = second[r][c] = (vec){0}; \
            for (int64_t k = from; k < from + 16; k++) { \
                EACH(c, 4) __builtin_prefetch(w[c] + k * 64 + ahead, 0, 2); \
                EACH(c, 4) { \
                    const bits pairs = *(const bits *)(w[c] + k * 64); \
                    EACH(r, R) { \
                        const bits own = (bits){0} + ((const uint32_t *)(x + r * in * 2))[k]; \
                        first[r][c] = plus(first[r][c], (vec)(own << 16), (vec)(pairs << 16)); \
                        second[r][c] = plus(second[r][c], (vec)(own & 0xffff0000), (vec)(pairs & 0xffff0000)); \
                    } \
                } \
            } \
            EACH(r, R) EACH(c, 4) acc[r][c] += first[r][c] + second[r][c]; \
        } \
        EACH(r, R) EACH(c, 4) y[r][c] = acc[r][c]; \
    }
AS_MATRIX(1) AS_MATRIX(2)
#else
static int has_matrices(void) { return 0; }
static void shape_matrices(int64_t rows) {}
static void free_matrices(void) {}
static void matrix_tile(vec y[][4], const char *x, const char *const *w, int64_t in, int64_t ahead) {}
static void matrix_tiles(vec y[][4], const char *x, int64_t second, const char *const *w, int64_t in, int64_t ahead, int slower) {}
static void as_matrix_1(vec y[][4], const char *x, const char *const *w, int64_t in, int64_t ahead) {}
static void as_matrix_2(vec y[][4], const char *x, const char *const *w, int64_t in, int64_t ahead) {}
#endif

/* How a product is cut. N: blocks of weights at a time. most: rows of a part. matrix_rows: those of a matrix register's sums, 0: none is
 * used. Whether the sums are those of matrices depends on the inputs alone, never on the rows. */
typedef struct { int matrices, N; int64_t most, matrix_rows; } Cut;

INLINE Cut cut(int64_t rows, int64_t in, int kind) {
    if (kind != PAIRED || in % 32 || !has_matrices()) return (Cut){0, rows <= FEW ? 4 : 2, TILE_ROWS, 0};
    if (rows <= 16) return (Cut){1, 4, 16, rows <= 2 ? 0 : rows};
    int64_t parts = (rows + MATRIX_ROWS - 1) / MATRIX_ROWS;
    return (Cut){1, 2, MATRIX_ROWS, ((rows + parts - 1) / parts + 1) / 2}; /* half of the largest part */
}

/* Rows in parts of at most `most`, as even as can be; each part fetches its share of what comes next. */
#define PARTS(rows, most) \
    for (int64_t part = 0, parts = ((rows) + (most) - 1) / (most), slower = parts == 1 ? 0 : parts == 2 ? 1 : 2, first = 0, many; \
         part < parts && (many = (rows) * (part + 1) / parts - first); first += many, part++)

INLINE void tile(vec y[][4], const void *x, int64_t rows, const char *const *w, int64_t in, int64_t ahead, int slower, int kind, Cut how) {
    if (kind == EIGHT) { tile_eight(y, x, rows, w, in, ahead, slower); return; }
    if (how.matrices) {
        if (how.N == 2) matrix_tiles(y, x, rows - how.matrix_rows, w, in, ahead, slower); /* the halves may share rows */
        else (how.matrix_rows ? matrix_tile : rows == 1 ? as_matrix_1 : as_matrix_2)(y, x, w, in, ahead);
        return;
    }
#define CASE(R, N) case R: tile_##R##_##N(y, x, w, in, ahead, slower, kind); break;
    switch (rows) { TILES(CASE) }
#undef CASE
}

INLINE int halved(int kind) { return kind == PAIRED || (kind == EIGHT && OF_BF16 == PAIRED); } /* whether inputs are bfloat16 */
INLINE int64_t bytes_of(int kind) { return halved(kind) ? 2 : 4; } /* of an input */

/* Bytes of a row of inputs as tiles read it, and of a block of weights. */
INLINE int64_t row_bytes(int64_t in, int kind) { return kind == EIGHT ? in + BEHIND_ROW : in * bytes_of(kind); }
INLINE int64_t block_bytes(int64_t in, int kind) { return kind == EIGHT ? in * W + 8 * W : in * W * (kind == WHOLE ? 4 : 2); }

/* Inputs [rows, in] as tiles read them: of 8 bits in `rounded`, else x itself. */
INLINE const char *as_read(char *rounded, const char *x, int64_t rows, int64_t in, int kind) {
    if (kind != EIGHT) return x;
    round_rows(rounded, x, rows, in);
    return rounded;
}

/* Columns of the blocks [from, to) of y [rows, out] = x [rows, in] weight [out, in]^T + bias, added to y where `onto`. */
INLINE void product(void *y, const char *x, int64_t rows, const char *weight, const void *bias, int64_t in, int64_t out,
                    int64_t from, int64_t to, int onto, int as_bf16, int kind) {
    const int64_t block = block_bytes(in, kind), row = row_bytes(in, kind);
    char rounded[kind == EIGHT ? rows * row : 1];
    x = as_read(rounded, x, rows, in, kind);
    const Cut how = cut(rows, in, kind);
    const int N = how.N;
    if (how.matrix_rows) shape_matrices(how.matrix_rows);
    for (int64_t j = from; j < to; j += N) {
        const char *at[4];
        for (int c = 0; c < N; c++) at[c] = weight + (j + c < to ? j + c : j) * block;
        PARTS(rows, how.most) {
            vec found[MATRIX_ROWS][4];
            tile(found, x + first * row, many, at, in, N * block + part * (block >> slower), slower, kind, how);
            for (int64_t r = 0; r < many; r++)
                for (int c = 0; c < N && j + c < to; c++) {
                    int64_t column = (j + c) * W, place = (first + r) * out + column;
                    if (column + W <= out) {
                        if (bias) found[r][c] += load(bias, column, kind != WHOLE);
                        if (onto) found[r][c] += load(y, place, 0);
                        store(y, place, found[r][c], as_bf16);
                    } else { /* a last block that is padded; it has no bias */
                        float whole[W];
                        store(whole, 0, found[r][c], as_bf16);
                        memcpy((char *)y + place * (as_bf16 ? 2 : 4), whole, (out - column) * (as_bf16 ? 2 : 4));
                    }
                }
        }
    }
    if (how.matrix_rows) free_matrices();
}

/* Columns of the blocks [from, to) of y [rows, I] = SiLU(x gate^T) (x up^T) (2002.05202). */
INLINE void swiglu(void *y, const char *x, int64_t rows, const char *gate_up, int64_t in, int64_t I, int64_t from, int64_t to,
                   int kind) {
    const int64_t block = block_bytes(in, kind), row = row_bytes(in, kind);
    char rounded[kind == EIGHT ? rows * row : 1];
    x = as_read(rounded, x, rows, in, kind);
    const Cut how = cut(rows, in, kind);
    const int N = how.N;
    if (how.matrix_rows) shape_matrices(how.matrix_rows);
    for (int64_t j = from; j < to; j += N / 2) {
        const char *at[4];
        for (int c = 0; c < N; c++) at[c] = gate_up + ((c % 2 ? I / W : 0) + (j + c / 2 < to ? j + c / 2 : j)) * block;
        PARTS(rows, how.most) {
            vec found[MATRIX_ROWS][4];
            tile(found, x + first * row, many, at, in, N / 2 * block + part * (block >> slower), slower, kind, how);
            for (int64_t r = 0; r < many; r++)
                for (int c = 0; c < N && j + c / 2 < to; c += 2) {
                    vec gate = found[r][c], up = found[r][c + 1];
                    store(y, (first + r) * I + (j + c / 2) * W, gate / (1.0f + exponential(-gate)) * up, halved(kind));
                }
        }
    }
    if (how.matrix_rows) free_matrices();
}

/* A head's d numbers, normed where the model does that, then rotated by its position (2104.09864, section 3.4). */
INLINE void rotate(float *to, float *x, const void *norm, const Pass *p, int64_t position, int bf16) {
    if (norm) rms_norm(x, 0, x, norm, p->d, p->eps, bf16, 0);
    const float *cos = p->cos + position * p->d, *sin = p->sin + position * p->d;
    const int64_t h = p->d / 2, whole = h / W * W; /* the halves of a narrow head fill no vector */
    for (int64_t i = 0; i < whole; i += W) {
        const vec low = load(x, i, 0), high = load(x, h + i, 0);
        store(to, i, low * load(cos, i, 0) + high * load(sin, i, 0), 0);
        store(to, h + i, high * load(cos, h + i, 0) + low * load(sin, h + i, 0), 0);
    }
    for (int64_t i = whole; i < h; i++) {
        to[i] = x[i] * cos[i] + x[h + i] * sin[i];
        to[h + i] = x[h + i] * cos[h + i] + x[i] * sin[h + i];
    }
}

/* Queries of one key head, whatever their tokens, go over its keys and values together: QUERIES at most (MATRIX_QUERIES by matrix
 * registers), SLOTS slots at a time, so that these come from an outer cache once for all, in tiles of TILE_ROWS at most, whose sums stay in
 * registers: those of R queries with SIDE(R) keys, or with as many vectors of a value. */
enum { QUERIES = 24, MATRIX_QUERIES = 48, SLOTS = 128 };
#ifdef __AVX512F__
#define SIDE(R) (R <= 3 ? 8 : R <= 6 ? 4 : 2)
#else
#define SIDE(R) (R == 1 ? 8 : R <= 3 ? 4 : 2)
#endif

/* Numbers to multiply: pairs of bfloat16 as they lie, else float32. */
INLINE vec numbers(const void *from, int64_t at, int bf16, int paired) {
    return paired ? *(const vec *)((const uint16_t *)from + at) : load(from, at, bf16);
}

INLINE vec plus_numbers(vec acc, vec x, vec y, int paired) { return paired ? BOTH(acc, (bits)x, (bits)y) : plus(acc, x, y); }

/* All ones where a byte is not 0. */
INLINE lanes ones(const uint8_t *byte) {
#ifdef __AVX512F__
    return (lanes)_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)byte)) != 0;
#elif defined __AVX2__
    return (lanes)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)byte)) != 0;
#else
    return __builtin_convertvector(*(const bytes *)byte, lanes) != 0;
#endif
}

/* W of a query's products with keys, from `slot` on, of which `there` are slots: -infinity for those that it does not see. */
INLINE void keep_scores(float *weights, vec *highest, vec found, const uint8_t *mask, int64_t slot, int64_t there) {
    const uint8_t *seen = mask ? mask + slot : 0;
    uint8_t last[W] = {0};
    if (there < W) {
        if (seen) memcpy(last, seen, there);
        else memset(last, 1, there);
        seen = last;
    }
    if (seen) found = choose(ones(seen), found, (vec){0} - INFINITY);
    store(weights, slot, found, 0);
    *highest = choose(found > *highest, found, *highest);
}

/* R queries [R, d] times each of the keys [from, to), and the highest product of each query in each place of a vector; -infinity for
 * slots that a query does not see. weights: [R, room]; from and room are multiples of W. */
#define SCORE(R, blocks) \
    INLINE void score_##R(float *weights, int64_t room, vec *highest, const char *queries, const char *keys, \
                          const uint8_t *const *masks, int64_t from, int64_t to, int64_t d, int paired, int bf16) { \
        const float scale = 1.0f / sqrtf((float)d); \
        const int64_t row = d * (bf16 ? 2 : 4), step = paired ? 2 * W : W, query = d * (paired ? 2 : 4); \
        for (int64_t slot = from; slot < to; slot += W) { \
            const int64_t there = to - slot < W ? to - slot : W; \
            vec products[R][W]; \
            for (int first = 0; first < W; first += SIDE(R)) { \
                const char *key[SIDE(R)]; \
                EACH(s, SIDE(R)) key[s] = keys + (slot + (first + s < there ? first + s : there - 1)) * row; \
                vec acc[R][SIDE(R)]; \
                EACH(r, R) EACH(s, SIDE(R)) acc[r][s] = (vec){0}; \
                for (int64_t i = 0; i < d; i += step) { \
                    if (R < SIDE(R)) { /* the fewer are held in registers */ \
                        vec held[R]; \
                        EACH(r, R) held[r] = numbers(queries + r * query, i, 0, paired); \
                        EACH(s, SIDE(R)) { \
                            vec other = numbers(key[s], i, bf16, paired); \
                            EACH(r, R) acc[r][s] = plus_numbers(acc[r][s], held[r], other, paired); \
                        } \
                    } else { \
                        vec held[SIDE(R)]; \
                        EACH(s, SIDE(R)) held[s] = numbers(key[s], i, bf16, paired); \
                        EACH(r, R) { \
                            vec other = numbers(queries + r * query, i, 0, paired); \
                            EACH(s, SIDE(R)) acc[r][s] = plus_numbers(acc[r][s], other, held[s], paired); \
                        } \
                    } \
                } \
                EACH(r, R) EACH(s, SIDE(R)) products[r][first + s] = acc[r][s]; \
            } \
            EACH(r, R) keep_scores(weights + r * room, highest + r, sums(products[r]) * scale, masks[r], slot, there); \
        } \
    }
TILES(SCORE)

/* Matrix registers serve heads of MOST_STEPS times 32 numbers at most. */
enum { MOST_STEPS = 4 };
INLINE int attends_by_matrices(int64_t d, int paired) { return paired && d % 32 == 0 && d <= 32 * MOST_STEPS && has_matrices(); }

/* Slots whose values matrix registers mix: MATRIX_SLOTS at a time, those well before a query. How many these are depends on its position
 * alone. A pass has PASS_TOKENS tokens at most (a macro, from compiled.py), so they stand before all that it adds, where a slot is a
 * position: the same slots form pairs on a tree's path and in plain decoding. */
enum { MATRIX_SLOTS = 32 };
INLINE int64_t far_slots(int64_t position, int64_t end) {
    const int64_t far = position - PASS_TOKENS < end ? position - PASS_TOKENS : end;
    return far > 0 ? far / MATRIX_SLOTS * MATRIX_SLOTS : 0;
}

#ifdef __AMX_BF16__
enum { AHEAD = 4096 }; /* bytes of keys and values that are fetched meanwhile: more than the processor fetches by itself */
#define WRITTEN __asm__ volatile("" ::: "memory") /* gcc 12 does not know that tile loads read memory */

/* Rows become columns: of 2, of 4, then fours of them in their places. */
INLINE void transpose(vec y[16], const float x[16][16]) {
    __m512 twos[16], fours[16];
    EACH(i, 8) {
        const __m512 upper = _mm512_loadu_ps(x[2 * i]), lower = _mm512_loadu_ps(x[2 * i + 1]);
        twos[2 * i] = _mm512_unpacklo_ps(upper, lower);
        twos[2 * i + 1] = _mm512_unpackhi_ps(upper, lower);
    }
    EACH(i, 8) {
        const __m512d upper = (__m512d)twos[i / 2 * 4 + i % 2], lower = (__m512d)twos[i / 2 * 4 + 2 + i % 2];
        fours[i / 2 * 4 + i % 2 * 2] = (__m512)_mm512_unpacklo_pd(upper, lower);
        fours[i / 2 * 4 + i % 2 * 2 + 1] = (__m512)_mm512_unpackhi_pd(upper, lower);
    }
    EACH(i, 4) {
        const __m512 even = _mm512_shuffle_f32x4(fours[i], fours[4 + i], 0x88), odd = _mm512_shuffle_f32x4(fours[i], fours[4 + i], 0xdd);
        const __m512 later_even = _mm512_shuffle_f32x4(fours[8 + i], fours[12 + i], 0x88);
        const __m512 later_odd = _mm512_shuffle_f32x4(fours[8 + i], fours[12 + i], 0xdd);
        y[i] = (vec)_mm512_shuffle_f32x4(even, later_even, 0x88);
        y[4 + i] = (vec)_mm512_shuffle_f32x4(odd, later_odd, 0x88);
        y[8 + i] = (vec)_mm512_shuffle_f32x4(even, later_even, 0xdd);
        y[12 + i] = (vec)_mm512_shuffle_f32x4(odd, later_odd, 0xdd);
    }
}

/* As `score_R`, 16 keys times 16 queries at a time: keys are the first factor as they lie, and of the queries a pair of numbers of each lies
 * side by side. */
static __attribute__((noinline)) void matrix_scores(float *weights, int64_t room, vec *highest, const uint32_t *queries, int64_t count,
                                                    const char *keys, const uint8_t *const *masks, int64_t end, int64_t d) {
    const float scale = 1.0f / sqrtf((float)d);
    const int64_t steps = d / 32;
    uint32_t pairs[MATRIX_QUERIES / 16][MOST_STEPS][16][16];
    for (int64_t q = 0; q < count; q++)
        for (int64_t pair = 0; pair < d / 2; pair++) pairs[q / 16][pair / 16][pair % 16][q % 16] = queries[q * d / 2 + pair];
    shape_matrices(16);
    WRITTEN;
    for (int64_t block = 0; block < end; block += SLOTS) for (int64_t first = 0; first < count; first += 16) {
        const int64_t many = count - first < 16 ? count - first : 16, to = end - block < SLOTS ? end : block + SLOTS;
        _tile_loadd(4, pairs[first / 16][0], 64);
        if (steps > 1) _tile_loadd(5, pairs[first / 16][1], 64);
        if (steps > 2) _tile_loadd(6, pairs[first / 16][2], 64);
        if (steps > 3) _tile_loadd(7, pairs[first / 16][3], 64);
        for (int64_t slot = block; slot < to; slot += W) {
            const int64_t there = to - slot < W ? to - slot : W;
            const char *own = keys + slot * d * 2;
            char last[W * 32 * MOST_STEPS * 2];
            if (!first) for (int64_t line = 0; line < W * d * 2; line += 64) __builtin_prefetch(own + line + AHEAD);
            if (there < W) {
                memset(last, 0, sizeof last);
                memcpy(last, own, there * d * 2);
                own = last;
                WRITTEN;
            }
            float found[W][16];
            _tile_zero(0);
            _tile_loadd(1, own, d * 2); _tile_dpbf16ps(0, 1, 4);
            if (steps > 1) { _tile_loadd(2, own + 64, d * 2); _tile_dpbf16ps(0, 2, 5); }
            if (steps > 2) { _tile_loadd(1, own + 128, d * 2); _tile_dpbf16ps(0, 1, 6); }
            if (steps > 3) { _tile_loadd(2, own + 192, d * 2); _tile_dpbf16ps(0, 2, 7); }
            _tile_stored(0, found, 64);
            vec products[16]; /* of each query */
            transpose(products, found);
            for (int64_t q = first; q < first + many; q++)
                keep_scores(weights + q * room, highest + q, products[q - first] * scale, masks[q], slot, there);
        }
    }
    free_matrices();
}

/* MATRIX_SLOTS values from `slot` on, 64 of a head's numbers or its last 32, as second factors: a pair of slots lies side by side, in the
 * order in which `unpack` leaves the numbers. What no query sees may be no number and counts as 0. */
INLINE void pair_values(uint16_t pairs[4][MATRIX_SLOTS / 2][32], const uint16_t *values, const uint8_t *seen, int64_t halves, int64_t d) {
    for (int64_t s = 0; s < MATRIX_SLOTS; s += 2) for (int64_t half = 0; half < halves; half++) {
        const uint16_t *value = values + s * d + half * 32;
        __builtin_prefetch((const char *)value + AHEAD);
        __builtin_prefetch((const char *)(value + d) + AHEAD);
        const __m512i first = seen[s] ? _mm512_loadu_si512(value) : _mm512_setzero_si512();
        const __m512i second = seen[s + 1] ? _mm512_loadu_si512(value + d) : _mm512_setzero_si512();
        _mm512_storeu_si512(pairs[2 * half][s / 2], _mm512_unpacklo_epi16(first, second));
        _mm512_storeu_si512(pairs[2 * half + 1][s / 2], _mm512_unpackhi_epi16(first, second));
    }
}

/* Mixed values [count, d] and totals of the slots [0, far[q]) of each query, `most` at most. First factors are the weights, rounded to
 * bfloat16. */
static __attribute__((noinline)) void matrix_mix(float *mixed, float *totals, const float *weights, int64_t room, const uint8_t *seen,
                                                 const int64_t *far, int64_t most, int64_t count, const uint16_t *values, int64_t d) {
    const __m512i lower = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23); /* back into order */
    const __m512i upper = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    const int64_t parts = (count + 15) / 16, rows = (count + parts - 1) / parts; /* queries at a time */
    for (int64_t q = 0; q < count; q++) {
        vec total = {0};
        for (int64_t slot = 0; slot < far[q]; slot += W) total += load(weights, q * room + slot, 0);
        totals[q] = sum(total);
    }
    shape_matrices(rows);
    for (int64_t from = 0; from < d; from += 64) { /* as many numbers as four registers hold */
        const int64_t halves = d - from < 64 ? 1 : 2;
        uint16_t own[16][MATRIX_SLOTS], pairs[SLOTS / MATRIX_SLOTS][4][MATRIX_SLOTS / 2][32];
        float sums[4][MATRIX_QUERIES][16] = {0};
        for (int64_t block = 0; block < most; block += SLOTS) {
            const int64_t to = most - block < SLOTS ? most : block + SLOTS;
            for (int64_t slot = block; slot < to; slot += MATRIX_SLOTS)
                pair_values(pairs[(slot - block) / MATRIX_SLOTS], values + slot * d + from, seen + slot, halves, d);
            for (int64_t first = 0; first < count; first += rows) {
                const int64_t many = count - first < rows ? count - first : rows;
                WRITTEN;
                _tile_loadd(0, sums[0][first], 64); _tile_loadd(1, sums[1][first], 64);
                _tile_loadd(2, sums[2][first], 64); _tile_loadd(3, sums[3][first], 64);
                for (int64_t slot = block; slot < to; slot += MATRIX_SLOTS) {
                    for (int64_t q = 0; q < many; q++) {
                        const float *of = weights + (first + q) * room + slot;
                        const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(of + 16), _mm512_loadu_ps(of));
                        _mm512_storeu_si512(own[q], slot < far[first + q] ? both : _mm512_setzero_si512());
                    }
                    WRITTEN;
                    _tile_loadd(4, own, 64);
                    _tile_loadd(5, pairs[(slot - block) / MATRIX_SLOTS][0], 64); _tile_dpbf16ps(0, 4, 5);
                    _tile_loadd(6, pairs[(slot - block) / MATRIX_SLOTS][1], 64); _tile_dpbf16ps(1, 4, 6);
                    if (halves < 2) continue;
                    _tile_loadd(5, pairs[(slot - block) / MATRIX_SLOTS][2], 64); _tile_dpbf16ps(2, 4, 5);
                    _tile_loadd(6, pairs[(slot - block) / MATRIX_SLOTS][3], 64); _tile_dpbf16ps(3, 4, 6);
                }
                _tile_stored(0, sums[0][first], 64); _tile_stored(1, sums[1][first], 64);
                _tile_stored(2, sums[2][first], 64); _tile_stored(3, sums[3][first], 64);
            }
        }
        for (int64_t q = 0; q < count; q++) for (int64_t half = 0; half < halves; half++) {
            const __m512 low = _mm512_loadu_ps(sums[2 * half][q]), high = _mm512_loadu_ps(sums[2 * half + 1][q]);
            _mm512_storeu_ps(mixed + q * d + from + half * 32, _mm512_permutex2var_ps(low, lower, high));
            _mm512_storeu_ps(mixed + q * d + from + half * 32 + 16, _mm512_permutex2var_ps(low, upper, high));
        }
    }
    free_matrices();
}
#else
static void matrix_scores(float *weights, int64_t room, vec *highest, const uint32_t *queries, int64_t count, const char *keys,
                          const uint8_t *const *masks, int64_t end, int64_t d) {}
static void matrix_mix(float *mixed, float *totals, const float *weights, int64_t room, const uint8_t *seen, const int64_t *far, int64_t most,
                       int64_t count, const uint16_t *values, int64_t d) {}
#endif

/* What a query gives each slot before it is divided by their sum: e^(its product - the highest). */
INLINE void weigh(float *weights, vec highest, int64_t end) {
    float most = -INFINITY;
    for (int s = 0; s < W; s++) most = highest[s] > most ? highest[s] : most;
    for (int64_t s = 0; s < end; s += W) store(weights, s, exponential(load(weights, s, 0) - most), 0);
}

/* Adds the slots [from, to) to the totals of R queries and to their mixed values [R, d], in the order of the slots. */
#define MIX(R, blocks) \
    INLINE void mix_##R(float *mixed, float *totals, const float *weights, int64_t room, const void *values, int64_t from, int64_t to, \
                        int64_t d, int bf16) { \
        float total[R]; \
        EACH(r, R) total[r] = totals[r]; \
        for (int64_t s = from; s < to; s++) EACH(r, R) total[r] += weights[r * room + s]; \
        EACH(r, R) totals[r] = total[r]; \
        int64_t i = 0; \
        BLOCK(R, (SIDE(R) < 4 ? SIDE(R) : 4)) BLOCK(R, 1) \
    }
#define BLOCK(R, count) \
    for (; i + count * W <= d; i += count * W) { \
        vec acc[R][count]; \
        EACH(r, R) EACH(c, count) acc[r][c] = load(mixed, r * d + i + c * W, 0); \
        for (int64_t s = from; s < to; s++) { \
            if (R < count) { \
                vec held[R]; \
                EACH(r, R) held[r] = weights[r * room + s] - (vec){0}; \
                EACH(c, count) { vec value = load(values, s * d + i + c * W, bf16); EACH(r, R) acc[r][c] = plus(acc[r][c], held[r], value); } \
            } else { \
                vec held[count]; \
                EACH(c, count) held[c] = load(values, s * d + i + c * W, bf16); \
                EACH(r, R) { vec own = weights[r * room + s] - (vec){0}; EACH(c, count) acc[r][c] = plus(acc[r][c], own, held[c]); } \
            } \
        } \
        EACH(r, R) EACH(c, count) store(mixed, r * d + i + c * W, acc[r][c], 0); \
    }
TILES(MIX)

/* Attention of `count` queries [count, d] to the slots [0, end): mixed [count, d], to be divided by `totals`. What no query sees may be
 * no number and is passed over; what some do not see adds nothing to them, which changes no bit. positions: of the queries; null: no
 * matrix registers. */
INLINE void attend(float *mixed, float *totals, float *weights, int64_t room, uint8_t *seen, const char *queries, int64_t count,
                   const char *keys, const void *values, const uint8_t *const *masks, const int64_t *positions, int64_t end, int64_t d,
                   int paired, int bf16) {
    vec highest[MATRIX_QUERIES];
    for (int64_t r = 0; r < count; r++) highest[r] = (vec){0} - INFINITY;
    if (positions) matrix_scores(weights, room, highest, (const uint32_t *)queries, count, keys, masks, end, d);
    else for (int64_t slot = 0, to; slot < end; slot = to) {
        to = end - slot < SLOTS ? end : slot + SLOTS;
        PARTS(count, TILE_ROWS) {
#define CASE(R, blocks) case R: score_##R(weights + first * room, room, highest + first, queries + first * d * (paired ? 2 : 4), keys, \
                                     masks + first, slot, to, d, paired, bf16); break;
            switch (many) { TILES(CASE) }
#undef CASE
        }
    }
    for (int64_t r = 0; r < count; r++) weigh(weights + r * room, highest[r], end);
    memset(totals, 0, count * 4);
    memset(mixed, 0, count * d * 4);
    memset(seen, !masks[0], end);
    for (int64_t r = 0; r < count; r++) {
        uint8_t *restrict any = seen;
        const uint8_t *restrict own = masks[r];
        if (own && (!r || own != masks[r - 1])) for (int64_t s = 0; s < end; s++) any[s] |= own[s];
    }
    int64_t far[MATRIX_QUERIES], nearest = 0, furthest = 0; /* slots that matrix registers mix: of each query, the most, the least */
    for (int64_t r = 0; r < count; r++) {
        far[r] = positions ? far_slots(positions[r], end) : 0;
        nearest = far[r] > nearest ? far[r] : nearest;
        furthest = !r || far[r] < furthest ? far[r] : furthest;
    }
    if (nearest) matrix_mix(mixed, totals, weights, room, seen, far, nearest, count, values, d);
    for (int64_t r = 0; r < count; r++) memset(weights + r * room + furthest, 0, (far[r] - furthest) * 4); /* these have been mixed */
    for (int64_t slot = furthest, to; slot < end; slot = to) {
        to = slot + 1;
        if (!seen[slot]) continue;
        while (to < end && to - slot < SLOTS && seen[to]) to++;
        PARTS(count, TILE_ROWS) {
#define CASE(R, blocks) case R: mix_##R(mixed + first * d, totals + first, weights + first * room, room, values, slot, to, d, bf16); break;
            switch (many) { TILES(CASE) }
#undef CASE
        }
    }
}

static inline int64_t shared(int64_t rows, const Pass *p) { /* floats that all threads share */
    return rows * (p->D + (p->H + 2 * p->K) * p->d + p->H * p->d + p->I);
}

/* Slots in whole vectors; 64 bytes more, so that the rows of weights never begin in the same sets of the cache. */
INLINE int64_t slots_of(const Pass *p) { return (p->S + W - 1) / W * W + 16; }

INLINE int64_t widest(const Pass *p) { /* of what products read for a token */
    const int64_t first = p->R > p->D ? p->R : p->D;
    return p->F > first ? p->F : first;
}

static inline int64_t own(int64_t rows, const Pass *p) { /* floats of each thread */
    return rows * widest(p) + (1 + 2 * MATRIX_QUERIES) * p->d + MATRIX_QUERIES + MATRIX_QUERIES * slots_of(p) + slots_of(p) / 4;
}

/* Room for the mask of a pass that is laid out here stands last. */
int64_t scratch_floats(const Pass *p) { return shared(p->B * p->n, p) + own(p->B * p->n, p) * p->threads + (p->B * p->n * p->S + 3) / 4; }

/* A thread's share of `count` pieces. */
#define SHARE(count) int64_t from = (count) * t / T, to = (count) * (t + 1) / T;

/* Attention of this thread's share of the queries: those of a key head one after another, whose keys and values then lie in the core's
 * own cache. qkv: [B * n, (H + 2 K) d], attended: [B * n, H d]. */
INLINE void attention(void *attended, float *qkv, const Layer *layer, const Pass *p, float *scratch, int t, int T, int kind) {
    const int bf16 = kind != WHOLE, paired = kind == PAIRED && p->d % (2 * W) == 0; /* queries times keys by pairs of numbers */
    const int matrices = attends_by_matrices(p->d, paired);
    const int64_t d = p->d, H = p->H, G = H / p->K, room = slots_of(p);
    float *turned = scratch, *queries = turned + d, *mixed = queries + MATRIX_QUERIES * d, *totals = mixed + MATRIX_QUERIES * d;
    float *const weights = totals + MATRIX_QUERIES;
    uint8_t *const seen = (uint8_t *)(weights + MATRIX_QUERIES * room);
    const uint8_t *const mask = p->masks[layer->pattern];
    SHARE(p->B * p->n * H)
    for (int64_t item = from, count; item < to; item += count) {
        const int64_t all = p->n * G, head = item / all, at = item % all, b = head / p->K, offset = (p->first_row * p->K + head) * p->S * d * (bf16 ? 2 : 4);
        const uint8_t *masks[MATRIX_QUERIES];
        int64_t where[MATRIX_QUERIES], positions[MATRIX_QUERIES]; /* of the queries among the heads of all tokens, and in their rows */
        count = all - at < to - item ? all - at : to - item;
        if (count > (matrices ? MATRIX_QUERIES : QUERIES)) count = matrices ? MATRIX_QUERIES : QUERIES;
        for (int64_t q = 0; q < count; q++) {
            const int64_t token = (at + q) / G, r = b * p->n + token, own_head = head % p->K * G + (at + q) % G;
            rotate(turned, qkv + r * (H + 2 * p->K) * d + own_head * d, layer->q_norm, p, p->positions[r], bf16);
            for (int64_t i = 0; i < d; i += W) store(queries, q * d + i, load(turned, i, 0), paired);
            masks[q] = mask ? mask + ((p->mask_rows > 1 ? b : 0) * p->n + token) * p->end : 0;
            where[q] = r * H + own_head;
            positions[q] = p->positions[r];
        }
        int64_t end = 1; /* behind the last slot that one of them sees */
        for (int64_t q = 0; q < count; q++) {
            int64_t own_end = p->end;
            while (masks[q] && own_end > end && !masks[q][own_end - 1]) own_end--;
            if (own_end > end) end = own_end;
        }
        attend(mixed, totals, weights, room, seen, (char *)queries, count, (char *)layer->keys + offset,
               (char *)layer->values + offset, masks, matrices ? positions : 0, end, d, paired, bf16);
        for (int64_t q = 0; q < count; q++)
            for (int64_t i = 0; i < d; i += W) store(attended, where[q] * d + i, load(mixed, q * d + i, 0) / totals[q], kind == PAIRED);
    }
}

/* Functions of their own, not part of `run`: there they leave products fewer registers. */
#define ATTENTION(type, kind) \
    static __attribute__((noinline)) void attention_##type(void *attended, float *qkv, const Layer *layer, const Pass *p, \
                                                           float *scratch, int t, int T) { \
        attention(attended, qkv, layer, p, scratch, t, T, kind); \
    }
ATTENTION(float32, WHOLE) ATTENTION(bfloat16, OF_BF16)

/* The highest number so far in each place of a vector, and where it stood. */
typedef struct { vec most; lanes place; } Highest;
INLINE Highest highest_of_none(void) { return (Highest){(vec){0} - INFINITY, (lanes){0}}; }

/* With the W numbers y that begin at place `at`. */
INLINE Highest highest_with(Highest so_far, vec y, int64_t at) {
    lanes place = {0}, higher = y > so_far.most;
    EACH(i, W) place[i] = i;
    return (Highest){choose(higher, y, so_far.most), ((place + (int32_t)at) & higher) | (so_far.place & ~higher)};
}

/* The highest of all, of equals the first; its place in `place`, which stays as it is where all are -infinity. */
INLINE float first_highest(Highest found, int64_t *place) {
    float highest = -INFINITY;
    EACH(i, W) if (found.most[i] > highest || (found.most[i] == highest && highest > -INFINITY && found.place[i] < *place)) {
        highest = found.most[i];
        *place = found.place[i];
    }
    return highest;
}

/* W numbers of the row of V that begins at `row`, from its place `at` on; -infinity behind its end. */
INLINE vec load_row(const void *from, int64_t row, int64_t V, int64_t at, int bf16) {
    if (V - at >= W) return load(from, row + at, bf16);
    uint32_t last[W];
    for (int64_t i = 0; i < W; i++)
        last[i] = at + i >= V ? 0xff800000 : bf16 ? (uint32_t)((const uint16_t *)from)[row + at + i] << 16 : ((const uint32_t *)from)[row + at + i];
    return *(const vec *)last;
}

/* The highest of the places [from, to) of the row of V that begins at `row`, of equals the first, and its place; `from` is a multiple of
 * W, and so is `to` or V itself. The place is 0 where all are -infinity. */
INLINE float highest_between(const void *x, int64_t row, int64_t V, int64_t from, int64_t to, int bf16, int64_t *place) {
    Highest found = highest_of_none();
    for (int64_t at = from; at < to; at += W) found = highest_with(found, load_row(x, row, V, at, bf16), at);
    *place = 0;
    return first_highest(found, place);
}

/* weights: how those of products lie; all else is of `kind`. */
INLINE void run(const Pass *p, int t, int T, int kind, int weights) {
    const int bf16 = kind != WHOLE, inputs = kind == PAIRED; /* the type of weights, cache and results; that of products' inputs */
    const int64_t rows = p->B * p->n, D = p->D, H = p->H, K = p->K, d = p->d, I = p->I, Q = (H + 2 * K) * d;
    float *x = p->scratch, *qkv = x + rows * D, *attended = qkv + rows * Q, *inner = attended + rows * H * d;
    float *normed = inner + rows * I + own(rows, p) * t, *turned = normed + rows * widest(p);
    char *const input = (char *)normed;
    if (p->fc) {
        for (int64_t i = 0; i < rows * p->F; i += W) store(input, i, load(p->input, i, bf16), inputs);
        SHARE(D / W)
        product(x, input, rows, p->fc, 0, p->F, D, from, to, 0, 0, weights);
    } else { SHARE(rows) for (int64_t r = from; r < to; r++) {
        const void *first = p->input ? p->input : p->embedding;
        for (int64_t i = 0; i < D; i += W) store(x, r * D + i, load(first, (p->input ? r : p->tokens[r]) * D + i, bf16), 0);
    } }
    #pragma omp barrier
    for (int64_t l = 0; l < p->layers; l++) {
        const Layer *layer = p->layer + l;
        if (layer->aux_hidden_state) {
            SHARE(D / W)
            for (int64_t r = 0; r < rows; r++)
                for (int64_t i = from * W; i < to * W; i += W) store(layer->aux_hidden_state, r * p->aux_width + i, load(x, r * D + i, 0), bf16);
        }
        const int own_input = !(p->reads || p->embedding_norm) || l > 0;
        const int64_t width = own_input ? D : p->R;
        if (own_input) for (int64_t r = 0; r < rows; r++) rms_norm(input, r * D, x + r * D, layer->norm_1, D, p->eps, bf16, inputs);
        else if (p->reads) for (int64_t i = 0; i < rows * width; i += W) store(input, i, load(p->reads, i, bf16), inputs);
        else for (int64_t r = 0; r < rows; r++) {
            rms_norm_of(input, r * width, p->embedding, p->tokens[r] * D, 1, p->embedding_norm, D, p->eps, bf16, inputs);
            rms_norm(input, r * width + D, x + r * D, p->input_norm, D, p->eps, bf16, inputs);
        }
        { SHARE(Q / W) product(qkv, input, rows, layer->qkv, layer->qkv_bias, width, Q, from, to, 0, 0, weights); }
        #pragma omp barrier
        { SHARE(rows * K) for (int64_t item = from; item < to; item++) { /* keys and values into the cache */
            int64_t r = item / K, head = item % K, place = (((p->first_row + r / p->n) * K + head) * p->S + p->slots[r]) * d;
            float *key = qkv + r * Q + (H + head) * d, *value = key + K * d;
            rotate(turned, key, layer->k_norm, p, p->positions[r], bf16);
            for (int64_t i = 0; i < d; i += W) {
                store(layer->keys, place + i, load(turned, i, 0), bf16);
                store(layer->values, place + i, load(value, i, 0), bf16);
            }
        } }
        #pragma omp barrier
        (kind == WHOLE ? attention_float32 : attention_bfloat16)(attended, qkv, layer, p, turned, t, T);
        #pragma omp barrier
        { SHARE(D / W) product(x, (char *)attended, rows, layer->out, layer->out_bias, H * d, D, from, to, 1, 0, weights); }
        #pragma omp barrier
        for (int64_t r = 0; r < rows; r++) rms_norm(input, r * D, x + r * D, layer->norm_2, D, p->eps, bf16, inputs);
        { SHARE(I / W) swiglu(inner, input, rows, layer->gate_up, D, I, from, to, weights); }
        #pragma omp barrier
        { SHARE(D / W) product(x, (char *)inner, rows, layer->down, 0, I, D, from, to, 1, 0, weights); }
        #pragma omp barrier
    }
    { SHARE(rows) for (int64_t r = from; r < to; r++) rms_norm(p->hidden, r * D, x + r * D, p->input ? 0 : p->norm, D, p->eps, bf16, bf16); }
    for (int64_t i = 0; i < p->outputs; i++) rms_norm(input, i * D, x + p->rows[i] * D, p->norm, D, p->eps, bf16, inputs);
    SHARE((p->V + W - 1) / W)
    product(p->logits, input, p->outputs, p->head, 0, D, p->V, from, to, 0, bf16, weights);
    if (!p->choices) return;
    /* Each thread's highest of its own columns, which still lie in its cache; then the highest of all. */
    typedef struct { float most; int32_t place; } Best;
    Best *const best = (Best *)turned; /* a pass has few rows, so they fit */
    for (int64_t i = 0; i < p->outputs; i++) {
        int64_t place;
        best[i].most = highest_between(p->logits, i * p->V, p->words, from * W, to * W < p->words ? to * W : p->words, bf16, &place);
        best[i].place = place;
    }
    #pragma omp barrier
    if (!t) for (int64_t i = 0; i < p->outputs; i++) {
        Best first = best[i];
        for (int64_t other = 1; other < T; other++) {
            const Best its = ((Best *)(turned + own(rows, p) * other))[i];
            if (its.most > first.most) first = its;
        }
        p->choices[i] = first.place;
    }
}

static void run_float32(const Pass *p, int t, int T) { run(p, t, T, WHOLE, WHOLE); }
static void run_bfloat16(const Pass *p, int t, int T) { run(p, t, T, OF_BF16, OF_BF16); }
static void run_eight_bits(const Pass *p, int t, int T) { run(p, t, T, OF_BF16, OF_EIGHT); }

/* Positions and slots [B * n] and the mask of a pass that has none: see `parents`. */
static void lay_out(Pass *p, int64_t *positions, int64_t *slots) {
    const int64_t n = p->n, start = p->end - n, rows = p->parents ? p->B : 1;
    uint8_t *const mask = (uint8_t *)(p->scratch + shared(p->B * n, p) + own(p->B * n, p) * p->threads);
    for (int64_t b = 0; b < p->B; b++) for (int64_t i = 0; i < n; i++) {
        const int64_t r = b * n + i, parent = p->parents ? p->parents[r] : i - 1;
        slots[r] = start + i;
        positions[r] = parent < 0 ? start : positions[b * n + parent] + 1;
        if (b >= rows) continue;
        uint8_t *const seen = mask + r * p->end;
        if (parent < 0) {
            memset(seen, 1, start);
            memset(seen + start, 0, n);
        } else memcpy(seen, mask + (b * n + parent) * p->end, p->end);
        seen[start + i] = 1;
    }
    for (int64_t l = 0; l < p->layers; l++) p->masks[p->layer[l].pattern] = n > 1 ? mask : 0;
    p->positions = positions;
    p->slots = slots;
    p->mask_rows = rows;
}

void forward(Pass *given) {
    Pass p = *given;
    int64_t positions[PASS_TOKENS], slots[PASS_TOKENS];
    if (!p.positions) lay_out(&p, positions, slots);
    #pragma omp parallel num_threads(p.threads)
    (p.eight_bits ? run_eight_bits : p.bf16 ? run_bfloat16 : run_float32)(&p, omp_get_thread_num(), omp_get_num_threads());
}

/* y [rows, out] = x [rows, in] weight [out, in]^T + bias, y of the weight's type, x of `input_bytes` for a bfloat16 weight, else float32.
 * eight_bits: of a bfloat16 weight. */
void linear(void *y, const char *x, int64_t rows, const char *weight, const void *bias, int64_t in, int64_t out, int bf16,
            int eight_bits, int threads) {
    #pragma omp parallel num_threads(threads)
    {
        int t = omp_get_thread_num(), T = omp_get_num_threads();
        SHARE((out + W - 1) / W)
        if (eight_bits) product(y, x, rows, weight, bias, in, out, from, to, 0, 1, OF_EIGHT);
        else if (bf16) product(y, x, rows, weight, bias, in, out, from, to, 0, 1, OF_BF16);
        else product(y, x, rows, weight, bias, in, out, from, to, 0, 0, WHOLE);
    }
}

/* Of a cache's entries [layers, B, heads, S, bytes]: row `row` of each layer gets, behind its first `start` slots, those of the slots
 * `path`, which rise, in this order. */
void keep_path(char *entries, int64_t layers, int64_t B, int64_t heads, int64_t S, int64_t bytes, int64_t row, int64_t start, const int64_t *path,
               int64_t count) {
    for (int64_t layer = 0; layer < layers; layer++)
        for (int64_t head = 0; head < heads; head++) {
            char *own = entries + ((layer * B + row) * heads + head) * S * bytes;
            for (int64_t i = 0; i < count; i++) if (path[i] != start + i) memcpy(own + (start + i) * bytes, own + path[i] * bytes, bytes);
        }
}

/* Of each row of logits [rows, V] the place of the highest; of equals the first. */
void argmax(int64_t *out, const void *logits, int64_t rows, int64_t V, int bf16, int threads) {
    #pragma omp parallel for num_threads(threads)
    for (int64_t r = 0; r < rows; r++) highest_between(logits, r * V, V, 0, V, bf16, out + r);
}

/* Whether any of x's numbers is above the same place's of y. */
INLINE int any_above(vec x, vec y) {
#ifdef __AVX512F__
    return _mm512_cmp_ps_mask((__m512)x, (__m512)y, _CMP_GT_OQ) != 0;
#elif defined __AVX2__
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)x, (__m256)y, _CMP_GT_OQ)) != 0;
#else
    const lanes above = x > y;
    int found = 0;
    EACH(i, W) found |= above[i];
    return found != 0;
#endif
}

/* The k highest among the indices [from, to) of a row of V numbers, best first, of equals the first: their values in `best`, and where they
 * stand; returns how many there are. `from` is a multiple of W, and so is `to` or V itself. */
INLINE int64_t highest_few(float *best, int64_t *indices, const void *x, int64_t row, int64_t V, int64_t from, int64_t to, int64_t k, int bf16) {
    int64_t known = 0;
    vec least = (vec){0} - INFINITY; /* of the k so far */
    for (int64_t block = from; block < to; block += W) {
        const vec y = load_row(x, row * V, V, block, bf16);
        if (known == k && !any_above(y, least)) continue;
        for (int64_t i = 0; i < W && block + i < V; i++) {
            if (known == k && !(y[i] > best[k - 1])) continue;
            int64_t at = known < k ? known++ : k - 1;
            for (; at && y[i] > best[at - 1]; at--) { best[at] = best[at - 1]; indices[at] = indices[at - 1]; }
            best[at] = y[i];
            indices[at] = block + i;
        }
        if (known == k) least = (vec){0} + best[k - 1];
    }
    return known;
}

/* Of each row of logits [rows, V] the indices [rows, k] of its k highest, best first; of equals the first. k is V at most. */
void top(int64_t *indices, const void *logits, int64_t rows, int64_t V, int64_t k, int bf16, int threads) {
    #pragma omp parallel for num_threads(threads)
    for (int64_t row = 0; row < rows; row++) {
        float best[k];
        highest_few(best, indices + row * k, logits, row, V, 0, V, k, bf16);
    }
}

/* probs [rows, V]: softmax of logits [rows, V] times `scale`. A row's sums run in an order that depends on V alone. */
void softmax(float *probs, const void *logits, int64_t rows, int64_t V, float scale, int bf16, int threads) {
    enum { SPANS = 8, MOST = 1024 }; /* spans of a row, each summed by one thread; rows at a time */
    if (rows > MOST) {
        softmax(probs + MOST * V, (const char *)logits + MOST * V * (bf16 ? 2 : 4), rows - MOST, V, scale, bf16, threads);
        rows = MOST;
    }
    const int64_t blocks = (V + W - 1) / W;
    float highest[rows * SPANS], masses[rows * SPANS];
    #pragma omp parallel num_threads(threads)
    {
        #pragma omp for
        for (int64_t item = 0; item < rows * SPANS; item++) {
            const int64_t row = item / SPANS, span = item % SPANS;
            vec most = (vec){0} - INFINITY;
            for (int64_t block = blocks * span / SPANS; block < blocks * (span + 1) / SPANS; block++) {
                const vec y = load_row(logits, row * V, V, block * W, bf16);
                most = choose(y > most, y, most);
            }
            highest[item] = -INFINITY;
            EACH(i, W) highest[item] = most[i] > highest[item] ? most[i] : highest[item];
        }
        #pragma omp for
        for (int64_t item = 0; item < rows * SPANS; item++) {
            const int64_t row = item / SPANS, span = item % SPANS;
            float top = -INFINITY;
            for (int other = 0; other < SPANS; other++) top = highest[row * SPANS + other] > top ? highest[row * SPANS + other] : top;
            vec mass = {0};
            for (int64_t block = blocks * span / SPANS; block < blocks * (span + 1) / SPANS; block++) {
                const int64_t at = row * V + block * W, there = V - block * W;
                const vec y = exponential((load_row(logits, row * V, V, block * W, bf16) - top) * scale);
                mass += y;
                if (there < W) memcpy(probs + at, &y, there * 4);
                else store(probs, at, y, 0);
            }
            masses[item] = sum(mass);
        }
        #pragma omp for
        for (int64_t item = 0; item < rows * SPANS; item++) {
            const int64_t row = item / SPANS, span = item % SPANS;
            float mass = 0.0f;
            for (int other = 0; other < SPANS; other++) mass += masses[row * SPANS + other];
            const float share = 1.0f / mass;
            const int64_t to = blocks * (span + 1) / SPANS * W;
            for (int64_t i = row * V + blocks * span / SPANS * W; i < row * V + (to < V ? to : V); i++) probs[i] *= share;
        }
    }
}

/* Of each row of probs [rows, V], not negative, the first token whose cumulative sum exceeds its uniform times the row's sum; V where
 * there is none, since the row is zero. Sums are float64. */
void draw(int64_t *tokens, const float *probs, const double *uniforms, int64_t rows, int64_t V, int threads) {
    enum { SPAN = 512 };
    #pragma omp parallel for num_threads(threads)
    for (int64_t row = 0; row < rows; row++) {
        const float *own = probs + row * V;
        const int64_t spans = (V + SPAN - 1) / SPAN;
        double sums[spans], total = 0.0;
        for (int64_t span = 0; span < spans; span++) {
            const int64_t from = span * SPAN, to = from + SPAN < V ? from + SPAN : V;
            double part[8] = {0};
            int64_t i = from;
            for (; i + 8 <= to; i += 8) for (int lane = 0; lane < 8; lane++) part[lane] += own[i + lane];
            for (; i < to; i++) part[0] += own[i];
            sums[span] = ((part[0] + part[4]) + (part[1] + part[5])) + ((part[2] + part[6]) + (part[3] + part[7]));
            total += sums[span];
        }
        const double threshold = uniforms[row] * total;
        double reached = 0.0;
        tokens[row] = V;
        for (int64_t span = 0; span < spans; span++) {
            if (reached + sums[span] <= threshold) { reached += sums[span]; continue; }
            const int64_t to = (span + 1) * SPAN < V ? (span + 1) * SPAN : V;
            for (int64_t i = span * SPAN; i < to && reached <= threshold; i++) if (own[i] > 0.0f) {
                reached += own[i];
                tokens[row] = i; /* where rounding leaves the sum below the threshold, the last one that is possible */
            }
            break;
        }
    }
}

/* A head's bias of the token before (heads/markov.py): that of V tokens behind token x is the product of their weights [V, rank], in
 * `blocks` as any product reads them, with x's row of `embedding` [., rank]. ids: [V], which tokens these are, null: all. V and rank are
 * multiples of W. */
typedef struct { const void *embedding, *blocks; const int64_t *ids; int64_t rank, eight_bits; } Bias;

/* Of the blocks [from, to) of a row of logits [., V] the scores: the logits, with the bias, if any, behind the token at place `before`. */
static void scores_of(float *scores, const void *logits, int64_t row, int64_t V, int64_t from, int64_t to, const Bias *bias, int64_t before,
                      int bf16) {
    for (int64_t block = from; block < to; block++) store(scores, block * W, load(logits, row * V + block * W, bf16), 0);
    if (!bias) return;
    const int64_t rank = bias->rank, at = (bias->ids ? bias->ids[before] : before) * rank;
    const char *x = (const char *)bias->embedding + at * (bf16 ? 2 : 4);
    float wide[rank];
    if (bf16 && OF_BF16 == WIDENED) {
        for (int64_t c = 0; c < rank; c += W) store(wide, c, load(bias->embedding, at + c, 1), 0);
        x = (const char *)wide;
    }
    if (!bf16) product(scores, x, 1, bias->blocks, 0, rank, V, from, to, 1, 0, WHOLE);
    else if (bias->eight_bits) product(scores, x, 1, bias->blocks, 0, rank, V, from, to, 1, 0, OF_EIGHT);
    else product(scores, x, 1, bias->blocks, 0, rank, V, from, to, 1, 0, OF_BF16);
}

/* Greedy drafts of a head with a bias: out[b][0] is the place of the highest of logits[b][0], and out[b][i] that of the highest of
 * logits[b][i] with the bias of the token at out[b][i - 1]; of equals the first. logits: [B, k, V]. */
void greedy_chain(int64_t *out, const void *logits, const Bias *bias, int64_t B, int64_t k, int64_t V, int bf16, int threads) {
    float scores[V], highest[threads];
    int64_t indices[threads];
    #pragma omp parallel num_threads(threads)
    {
        int t = omp_get_thread_num(), T = omp_get_num_threads();
        SHARE(V / W)
        for (int64_t slot = 0; slot < B * k; slot++) {
            const int first = slot % k == 0;
            scores_of(scores, logits, slot, V, from, to, first ? 0 : bias, first ? 0 : out[slot - 1], bf16);
            highest[t] = highest_between(scores, 0, V, from * W, to * W, 0, indices + t);
            #pragma omp barrier
            #pragma omp single
            {
                int best = 0;
                for (int other = 1; other < T; other++) if (highest[other] > highest[best]) best = other;
                out[slot] = indices[best];
            }
        }
    }
}

/* Greedy trees of a head, its best paths first (2406.16858, section 4; the head's logits of all levels stand already). A node's value is
 * the sum along its path of min(0, log-probability + trust). Of row b, found[b] nodes, parents before children: the next is always the
 * best child of any node that is there, until there are `nodes`, or the i-th would have a lower chance than least[i], which rise. Of
 * equals the first.
 *
 * indices, parents (-1: the root), values: [B, nodes]. logits: [B, k, V] of the levels. bias: null without one; the first level never has
 * it. V is a multiple of W. children: of a node at most. */
void greedy_tree(int64_t *indices, int64_t *parents, float *values, int64_t *found, const void *logits, const Bias *bias, int64_t B, int64_t k,
                 int64_t V, int64_t nodes, int64_t children, const float *least, float trust, int bf16, int threads) {
    typedef struct { float value; int64_t place, parent, level; } Child;
    float scores[V], masses[threads], best[threads][children];
    int64_t at[threads][children], counts[threads], levels[nodes], waiting = 0, next = -1; /* the node that gets children now; -2: none */
    Child open[nodes * children];
    #pragma omp parallel num_threads(threads)
    {
        const int t = omp_get_thread_num(), T = omp_get_num_threads();
        SHARE(V / W)
        for (int64_t b = 0; b < B; b++) {
            #pragma omp barrier
            #pragma omp single
            { waiting = 0; next = -1; found[b] = 0; }
            while (next > -2) {
                const int64_t level = next < 0 ? 0 : levels[next] + 1, missing = nodes - found[b];
                scores_of(scores, logits, b * k + level, V, from, to, level ? bias : 0, level ? indices[b * nodes + next] : 0, bf16);
                counts[t] = highest_few(best[t], at[t], scores, 0, V, from * W, to * W, children < missing ? children : missing, 0);
                #pragma omp barrier
                float top = -INFINITY;
                for (int other = 0; other < T; other++) if (counts[other] && best[other][0] > top) top = best[other][0];
                vec mass = {0};
                for (int64_t block = from; block < to; block++) mass += exponential(load(scores, block * W, 0) - top);
                masses[t] = sum(mass);
                #pragma omp barrier
                #pragma omp single
                {
                    float mass = 0.0f;
                    for (int other = 0; other < T; other++) mass += masses[other];
                    const float above = next < 0 ? 0.0f : values[b * nodes + next], norm = top + logf(mass);
                    int64_t taken[T];
                    memset(taken, 0, sizeof taken);
                    for (int64_t child = 0; child < children; child++) { /* the threads' lists are sorted: merge them */
                        int from_thread = -1;
                        for (int other = 0; other < T; other++)
                            if (taken[other] < counts[other] && (from_thread < 0 || best[other][taken[other]] > best[from_thread][taken[from_thread]]))
                                from_thread = other;
                        if (from_thread < 0 || child >= missing) break;
                        const int64_t number = taken[from_thread]++;
                        const float step = best[from_thread][number] - norm + trust;
                        open[waiting++] = (Child){above + (step < 0.0f ? step : 0.0f), at[from_thread][number], next, level};
                    }
                    /* Nodes are added until one has children of its own to look at, or the tree is done. */
                    for (next = -2; next == -2 && found[b] < nodes && waiting;) {
                        int64_t first = 0;
                        for (int64_t other = 1; other < waiting; other++) if (open[other].value > open[first].value) first = other;
                        const Child chosen = open[first];
                        if (chosen.value < logf(least[found[b]])) break;
                        memmove(open + first, open + first + 1, (--waiting - first) * sizeof *open);
                        const int64_t node = b * nodes + found[b];
                        indices[node] = chosen.place;
                        parents[node] = chosen.parent;
                        values[node] = chosen.value;
                        levels[found[b]] = chosen.level;
                        found[b]++;
                        if (chosen.level + 1 < k && found[b] < nodes && chosen.value >= logf(least[found[b]])) next = found[b] - 1;
                    }
                }
            }
        }
    }
}

/* Bytes of an input of `linear` for a bfloat16 weight. */
int64_t input_bytes(void) { return bytes_of(OF_BF16); }
