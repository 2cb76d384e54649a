# SHA-256 of two texts at a time. The instructions of a processor for one text wait for each other,
# those for two texts do not: 1.6 times as fast. Elsewhere hashlib is used, see rmqctl.files.sha256.

cdef extern from *:
    """
    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    #include <cpuid.h>
    #include <immintrin.h>

    #define RMQCTL_SHA __attribute__((target("sha,sse4.1,ssse3")))

    /* Whether the processor has SHA (leaf 7), and SSSE3 and SSE4.1 (leaf 1). */
    static int rmqctl_has_sha256(void) {
        unsigned a, b, c, d, sse;
        if (!__get_cpuid(1, &a, &b, &sse, &d) || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
        return b >> 29 & 1 && sse >> 9 & 1 && sse >> 19 & 1;
    }

    static const uint32_t rmqctl_sha256_k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
        0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
        0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
        0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
        0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
        0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
        0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
        0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2};

    /* Hash `blocks` blocks of 64 bytes of each of two texts. The state of a text is eight words in
       the order of FIPS 180-4; the instructions keep them as two registers, ABEF and CDGH. */
    RMQCTL_SHA static void rmqctl_sha256(uint32_t *states, const uint8_t *first,
                                         const uint8_t *second, size_t blocks) {
        const __m128i order = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
        const uint8_t *text[2] = {first, second};
        __m128i abef[2], cdgh[2], before[2][2], word[2][4], x;
        int lane, step;
        size_t block;
        for (lane = 0; lane < 2; lane++) {
            x = _mm_shuffle_epi32(_mm_loadu_si128((__m128i *)(states + 8 * lane)), 0xB1);
            cdgh[lane] = _mm_shuffle_epi32(_mm_loadu_si128((__m128i *)(states + 8 * lane + 4)),
                                           0x1B);
            abef[lane] = _mm_alignr_epi8(x, cdgh[lane], 8);
            cdgh[lane] = _mm_blend_epi16(cdgh[lane], x, 0xF0);
        }
        for (block = 0; block < blocks; block++) {
            for (lane = 0; lane < 2; lane++) {
                before[lane][0] = abef[lane];
                before[lane][1] = cdgh[lane];
                for (step = 0; step < 4; step++)
                    word[lane][step] = _mm_shuffle_epi8(_mm_loadu_si128(
                        (const __m128i *)(text[lane] + 64 * block + 16 * step)), order);
            }
    #if defined(__clang__)
            #pragma unroll
    #else
            #pragma GCC unroll 16
    #endif
            for (step = 0; step < 16; step++) {
                const __m128i k = _mm_loadu_si128((const __m128i *)(rmqctl_sha256_k + 4 * step));
                for (lane = 0; lane < 2; lane++) {
                    __m128i *w = word[lane];
                    x = _mm_add_epi32(w[step & 3], k);
                    cdgh[lane] = _mm_sha256rnds2_epu32(cdgh[lane], abef[lane], x);
                    abef[lane] = _mm_sha256rnds2_epu32(abef[lane], cdgh[lane],
                                                       _mm_shuffle_epi32(x, 0x0E));
                    if (step < 12) {  /* the words of the step after the next three */
                        x = _mm_sha256msg1_epu32(w[step & 3], w[(step + 1) & 3]);
                        x = _mm_add_epi32(x, _mm_alignr_epi8(w[(step + 3) & 3],
                                                             w[(step + 2) & 3], 4));
                        w[step & 3] = _mm_sha256msg2_epu32(x, w[(step + 3) & 3]);
                    }
                }
            }
            for (lane = 0; lane < 2; lane++) {
                abef[lane] = _mm_add_epi32(abef[lane], before[lane][0]);
                cdgh[lane] = _mm_add_epi32(cdgh[lane], before[lane][1]);
            }
        }
        for (lane = 0; lane < 2; lane++) {
            x = _mm_shuffle_epi32(abef[lane], 0x1B);
            cdgh[lane] = _mm_shuffle_epi32(cdgh[lane], 0xB1);
            _mm_storeu_si128((__m128i *)(states + 8 * lane), _mm_blend_epi16(x, cdgh[lane], 0xF0));
            _mm_storeu_si128((__m128i *)(states + 8 * lane + 4),
                             _mm_alignr_epi8(cdgh[lane], x, 8));
        }
    }
    #else
    static int rmqctl_has_sha256(void) { return 0; }
    static void rmqctl_sha256(uint32_t *states, const uint8_t *first, const uint8_t *second,
                              size_t blocks) {}
    #endif
    """
    int rmqctl_has_sha256() nogil
    void rmqctl_sha256(uint32_t *states, const uint8_t *first, const uint8_t *second,
                       size_t blocks) nogil


SHA256_PAIRS = bool(rmqctl_has_sha256())
"""Whether the processor has the instructions that `sha256_pair` needs."""


cdef struct Texts:
    uint32_t *states
    const uint8_t *first
    const uint8_t *second
    size_t blocks


def sha256_pair(uint32_t[::1] states, const uint8_t[::1] first, const uint8_t[::1] second,
                int64_t blocks):
    """Hash ``blocks`` blocks of 64 bytes of each of two texts, which may be mappings of files.

    ``states``: the eight words (uint32) of the first text's state, then those of the second.

    Returns False if a page cannot be read; the states are then unchanged.

    Raises: IndexError if an array is too short, ValueError without `SHA256_PAIRS`.
    """
    cdef Texts texts
    if not SHA256_PAIRS:
        raise ValueError("this processor has no instructions for SHA-256")
    if states.shape[0] != 16 or blocks < 0 or blocks > min(first.shape[0], second.shape[0]) // 64:
        raise IndexError("the arrays do not contain that many blocks")
    if not blocks:
        return True
    texts = Texts(&states[0], &first[0], &second[0], <size_t>blocks)
    return guarded(hash_texts, &texts) == 1


cdef int hash_texts(void *of) noexcept nogil:
    """Hash both texts. Return 1."""
    cdef Texts *texts = <Texts *>of
    rmqctl_sha256(texts.states, texts.first, texts.second, texts.blocks)
    return 1
