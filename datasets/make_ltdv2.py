#!/usr/bin/env python3
"""A tree like LTDv2 as it is downloaded, in the same sizes, for measuring what opening it costs. No frame of it is LTDv2's.

    python3 datasets/make_ltdv2.py OUT --frames datasets/thermal-sample/images/train

OUT gets frames/DATE/clip_N_HHMM/image_NNNN.jpg (420,033 names for copies of a few of the frames given), Train.json (about 1 GB), Valid.json
and TestNoLabels.json, with the keys, the nesting and the 17-digit ids of the real ones. --share 0.01 makes a hundredth. The same arguments make
the same files. Boxes are drawn at random: nothing can be learnt from them. Standard library only.
"""

import argparse
import datetime
import os
import pathlib
import random
import shutil
import sys

# Images of the splits, and how many boxes an image has on average.
SPLITS = [("Train.json", 329_299, 7.8), ("Valid.json", 43_850, 7.8), ("TestNoLabels.json", 46_884, None)]
FRAMES_PER_CLIP = 120
MONTHS = [(2020, 5), (2020, 6), (2020, 7), (2020, 8), (2021, 1), (2021, 2), (2021, 3), (2021, 4)]
CATEGORIES = ["background", "person", "bicycle", "motorcycle", "vehicle"]
# Of 1000 boxes: how many are of categories 1 to 4.
MIX = [(1, 850), (2, 893), (3, 898), (4, 1000)]
WIDTH, HEIGHT = 384, 288
# How many names one file gets: file systems have limits.
NAMES = 20_000


def clips(draw, count):
    """Day, minute of the day and number of each clip, in the order of time within a month."""
    for number in range(count):
        year, month = MONTHS[number * len(MONTHS) // count]
        day = datetime.date(year, month, draw.randrange(1, 29))
        yield day, draw.randrange(24 * 60), number % 48


def weather(draw, day, minute):
    """One clip's meta: the keys of the data set, values that a year in the north could have."""
    season = [0, 2, 5, 9, 14, 17, 19, 18, 14, 9, 4, 1][day.month - 1]
    sun = max(0, 12 - abs(minute / 60 - 13)) / 12 if 6 * 60 <= minute <= 21 * 60 else 0
    temperature = season + 6 * sun - 3 + draw.gauss(0, 3)
    values = {
        "Temperature": round(temperature, 1),
        "Humidity": round(min(99, max(30, 85 - 30 * sun + draw.gauss(0, 8))), 1),
        "Precipitation latest 10 min": round(max(0, draw.gauss(-0.6, 0.5)), 1),
        "Dew Point": round(temperature - draw.uniform(1, 8), 1),
        "Wind Direction": round(draw.uniform(0, 360), 1),
        "Wind Speed": round(abs(draw.gauss(3, 2)), 1),
        "Sun Radiation Intensity": round(700 * sun * draw.uniform(0.2, 1), 1),
        "Min of sunshine latest 10 min": round(10 * draw.random() * (sun > 0), 1),
    }
    return ",\n".join(f'                "{key}": {value}' for key, value in values.items())


def image_text(name, ident, moment, meta):
    return (
        f'        {{\n            "id": {ident},\n            "file_name": "{name}",\n            "width": {WIDTH},\n            "height": {HEIGHT},\n'
        f'            "date_captured": "{moment.isoformat()}",\n            "meta": {{\n{meta}\n            }}\n        }}'
    )


def box_text(draw, ident, image):
    kind = draw.randrange(1000)
    category = next(category for category, below in MIX if kind < below)
    height = 4 + 40 * draw.random() ** 3
    width = height * (0.45 if category == 1 else 1.8 if category == 4 else 1.1)
    x, y = draw.uniform(0, WIDTH - width), draw.uniform(0, HEIGHT - height)
    return (
        f'        {{\n            "id": {ident},\n            "image_id": {image},\n            "category_id": {category},\n            "bbox": [\n'
        f"                {x:.2f},\n                {y:.2f},\n                {width:.2f},\n                {height:.2f}\n            ],\n"
        f'            "area": {width * height:.2f},\n            "iscrowd": 0,\n            "uid": {ident % 143_294}\n        }}'
    )


def write_split(out, pool, name, images, boxes, seed, linked):
    draw = random.Random(f"{seed} {name}")
    with open(out / name, "w", encoding="ascii") as json:
        json.write('{\n    "images": [\n')
        idents, first = [], True
        # Splits are of different clips: the number of a split's first clip is far from any other's.
        offset = 1000 * [split[0] for split in SPLITS].index(name)
        for day, minute, number in clips(draw, -(-images // FRAMES_PER_CLIP)):
            number += offset
            folder = f"frames/{day:%Y%m%d}/clip_{number}_{minute // 60:02}{minute % 60:02}"
            while (out / folder).exists():
                folder += "b"
            (out / folder).mkdir(parents=True)
            meta, start = weather(draw, day, minute), datetime.datetime(day.year, day.month, day.day, minute // 60, minute % 60)
            for frame in range(min(FRAMES_PER_CLIP, images - len(idents))):
                path = f"{folder}/image_{frame:04}.jpg"
                ident = int(f"{day:%Y%m%d}{1 + len(idents) + offset * 100_000:09}")
                os.link(pool(linked + len(idents)), out / path)
                json.write(("" if first else ",\n") + image_text(path, ident, start + datetime.timedelta(seconds=frame), meta))
                idents.append(ident)
                first = False
        json.write("\n    ],\n")
        if boxes is not None:
            json.write('    "annotations": [\n')
            first, count = True, 0
            for ident in idents:
                # A third of the frames is empty.
                here = 0 if draw.random() < 1 / 3 else min(60, round(draw.expovariate(1 / (1.5 * boxes))))
                for _ in range(here):
                    json.write(("" if first else ",\n") + box_text(draw, count, ident))
                    first, count = False, count + 1
            json.write("\n    ],\n")
        names = ",\n".join(f'        {{\n            "id": {i},\n            "name": "{name}"\n        }}' for i, name in enumerate(CATEGORIES))
        json.write(f'    "categories": [\n{names}\n    ]\n}}\n')
    size = (out / name).stat().st_size / 1e6
    print(f"{name}: {len(idents)} images, {size:.0f} MB", flush=True)
    return linked + len(idents)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, help="a folder that is not there yet")
    parser.add_argument("--frames", type=pathlib.Path, required=True, help="a folder of JPEG files of 384x288, of which up to 64 are taken")
    parser.add_argument("--share", type=float, default=1.0, help="of the number of images")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    sources = sorted(args.frames.glob("*.jpg"))[:64]
    if not sources:
        sys.exit(f"{args.frames}: no .jpg file; `yolo-train data check --data datasets/thermal-sample.yaml` draws some into datasets/thermal-sample/images/train")
    if args.out.exists():
        sys.exit(f"{args.out}: is there already")
    args.out.mkdir(parents=True)

    def pool(number):
        """A file that may have another name; copies, so that the frames given are not touched."""
        round_, which = divmod(number, NAMES * len(sources))
        copy = args.out / f".pool/{round_}_{which % len(sources)}.jpg"
        if not copy.exists():
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(sources[which % len(sources)], copy)
        return copy

    linked = 0
    for name, images, boxes in SPLITS:
        linked = write_split(args.out, pool, name, max(FRAMES_PER_CLIP, round(images * args.share)), boxes, args.seed, linked)


if __name__ == "__main__":
    main()
