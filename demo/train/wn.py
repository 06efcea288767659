"""Common English nouns with a short gloss from Princeton WordNet 3.0 (Debian package wordnet-base)."""

import re, sys, json
import os

W = os.environ.get("WORDNET_DIR", "/usr/share/wordnet").rstrip("/") + "/"
BAD = set(
    """sex breast penis vagina rape murder suicide corpse whore bastard slave nazi negro racism genitals orgasm
intercourse prostitute drug cocaine heroin torture terrorist bomb gun weapon killing killer bitch devil hell damn
masturbation pornography homosexual jew christ muslim orgasm syphilis rapist slut nigger buttocks ass cock""".split()
)


def load():
    cnt = {}
    for l in open(W + "cntlist.rev"):
        k, sn, tc = l.split()
        lem, rest = k.split("%")
        if rest[0] == "1" and sn == "1":
            cnt[lem] = max(cnt.get(lem, 0), int(tc))
    first = {}
    for l in open(W + "index.noun"):
        if l.startswith("  "):
            continue
        p = l.split()
        first[p[0]] = [x for x in p if re.fullmatch(r"\d{8}", x)][0]
    data = {}
    for l in open(W + "data.noun"):
        if l.startswith("  "):
            continue
        head, gl = l.split("|", 1)
        f = head.split()
        data[f[0]] = (int(f[1]), [f[4 + 2 * i] for i in range(int(f[3], 16))], gl.strip())
    out = []
    for lem, off in first.items():
        c = cnt.get(lem, 0)
        lex, words, gl = data[off]
        if c < 1 or "_" in lem or not lem.isalpha() or lem in BAD or len(lem) < 3:
            continue
        if lem not in words:
            continue
        gloss = re.split(r'; "|;', gl)[0]
        gloss = re.sub(r"\([^)]*\)", "", gloss).strip(" :,")
        gloss = re.sub(r"\s+", " ", gloss)
        if not 3 <= len(gloss.split()) <= 24 or set(gloss.lower().split()) & BAD:
            continue
        out.append((c, lem, lex, gloss))
    out.sort(reverse=True)
    return out


if __name__ == "__main__":
    o = load()
    print(len(o))
    for x in o[::150]:
        print(x)
    json.dump(o, open("wn.json", "w"))
