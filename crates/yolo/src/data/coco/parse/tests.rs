//! What is kept of a COCO file, what is counted, and where a wrong one is wrong.

use super::*;

const HEAD: &str = r#""images":[{"id":1,"file_name":"a.jpg","width":100,"height":50},{"id":"x","filename":"b/c.png"}],
"categories":[{"id":7,"name":"cat"},{"id":3,"name":5}]"#;

fn read(text: &str) -> Result<CocoFile, String> {
    parse(text.as_bytes()).map_err(|fault| fault.reason)
}

#[test]
fn any_order_and_every_dialect() {
    let annotations = r#"[{"id":1,"image_id":1,"category_id":3,"bbox":[10,5.5,20,10],"area":200,"segmentation":[[1,2,3,4,5,6]],"iscrowd":0},
        {"image_id":"x","category_id":7,"bbox":[0,0,1,1],"segmentation":{"counts":[1,2],"size":[2,2]}},
        {"image_id":1.0,"category_id":"7","bbox":[],"segmentation":[[10,20,30,20,11,21],[15,45,12,18,13,19],[1,1,900,900]],"attributes":{"deep":[[[1]]]}},
        {"image_id":1,"category_id":7,"segmentation":null,"bbox":null,"iscrowd":null},
        {"image_id":1,"category_id":7,"bbox":[1,1,5,5],"iscrowd":1},{"image_id":1,"category_id":7,"bbox":[1,1,0,5],"iscrowd":false},
        {"id":9,"image_id":2,"category_id":7,"bbox":[1,1,5,5]},{"id":10,"image_id":1,"category_id":70,"bbox":[1,1,5,5]}]"#;
    let first = read(&format!(r#"{{"info":{{"a":[1]}},{HEAD},"annotations":{annotations}}}"#)).unwrap();
    let last = read(&format!(r#"{{"annotation":{annotations},{HEAD},"licenses":[]}}"#)).unwrap();
    assert_eq!(format!("{first:?}"), format!("{last:?}"));
    assert_eq!(first.names(), ["cat", "5"]);
    assert_eq!(first.images[1].file, "b/c.png");
    assert_eq!((first.images[0].size.width, first.images[1].size.width), (100, 0));
    let xywh = |i| first.boxes_of(i).iter().map(|b| (b.category, b.xywh)).collect::<Vec<_>>();
    assert_eq!(xywh(0), [(1, [10., 5.5, 20., 10.]), (0, [10., 18., 20., 27.])]);
    assert_eq!(xywh(1), [(0, [0., 0., 1., 1.])]);
    let points = |k: usize| first.outline(&first.boxes_of(0)[k]).len();
    assert_eq!((points(0), points(1), first.outline(&first.boxes_of(1)[0]).len()), (3, 7, 0), "two rings and a break");
    let c = &first.counts;
    assert_eq!((c.crowd, c.zero_size, c.boxless, c.masks, c.unknown_image, c.unknown_category), (1, 1, 1, 1, 1, 1));
    assert_eq!(
        c.examples,
        [
            "an annotation without id of image 1 has no box",
            "an annotation without id of image 1 has a box of 0 x 5 pixels",
            "image id 2 is not listed and has 1 annotations",
            "category id 70 is not listed and has 1 annotations"
        ]
    );
}

#[test]
fn ids_beyond_what_a_float_holds_stay_apart() {
    let image = |id: i64| format!(r#"{{"id":{id},"file_name":"{id}.jpg"}}"#);
    let note = |id: i64| format!(r#"{{"image_id":{id},"category_id":0,"bbox":[{},0,1,1]}}"#, id % 10);
    let (a, b) = (20_240_101_123_456_781, 20_240_101_123_456_780);
    let text =
        format!(r#"{{"annotations":[{},{}],"images":[{},{}],"categories":[{{"id":0,"name":"a"}}]}}"#, note(b), note(a), image(a), image(b));
    let file = read(&text).unwrap();
    assert_eq!([0, 1].map(|i| file.boxes_of(i).iter().map(|b| b.xywh[0]).collect::<Vec<_>>()), [vec![1.0], vec![0.0]]);
}

#[test]
fn wrong_files_say_where() {
    let with =
        |annotation: &str| format!("{{{HEAD},\n\"annotations\":[{{\"image_id\":1,\"category_id\":3,\"bbox\":[1,1,1,1]}},\n{annotation}]}}");
    for (text, part) in [
        (
            with(r#"{"image_id":1,"category_id":3,"bbox":[1,1,1]}"#),
            "element 1: an annotation without id of image 1: `bbox` has 3 numbers, not 4 at line 4",
        ),
        (
            with(r#"{"id":5,"image_id":1,"category_id":3,"bbox":[1,1,1,"x"]}"#),
            "element 1: invalid value: string \"x\", expected a number at line 4",
        ),
        (with(r#"{"id":5,"image_id":1,"bbox":[1,1,1,1]}"#), "annotation 5 of image 1 has no `category_id`"),
        (with(r#"{"id":5,"bbox":[1,1,1,1]}"#), "annotation 5 has no `image_id`"),
        (with(r#"{"image_id":[],"category_id":3}"#), "expected a whole number or a text"),
        (with(r#"{"image_id":1,"category_id":3,"bbox":[1,1,1e60,1]}"#), "beyond all bounds"),
        (with("17"), "line 4"),
        (r#"{"images":[],"annotations":[]}"#.into(), "no `categories`"),
        (with(&format!(r#"{{"id":{},"image_id":1}}"#, "7".repeat(40))), "element 1: an id of more than 64 bits (7.77"),
        (
            format!(r#"{{"images":[{{"id":1,"file_name":"a"}},{{"id":{},"file_name":"b"}}]}}"#, "7".repeat(40)),
            "element 1: an id of more than 64 bits (7.77",
        ),
        (with(r#"{"id":0.5,"image_id":1}"#), "an id that is a fraction"),
        // Ids of 17 digits that pandas had beside a gap.
        (
            with(r#"{"id":2.0200519e16,"image_id":1}"#),
            "element 1: an id written as a decimal number above 2^53: its last digits are lost (2.0200519e16)",
        ),
        (with(r#"{"image_id":20200519000000001.0}"#), "element 1: an id written as a decimal number above 2^53"),
        (with(r#"{"image_id":1e30}"#), "element 1: an id of more than 64 bits (1e30)"),
        (with(r#"{"image_id":-9223372036854775809}"#), "element 1: an id of more than 64 bits (-9.22"),
        (with("[1]"), "element 1: invalid type: sequence, expected an object"),
        (r#"{"annotations":[],"categories":[]}"#.into(), "no `images`"),
        ("[]".into(), "expected a COCO object"),
        ("".into(), "EOF"),
        (format!(r#"{{{HEAD},"annotations":[{{"image_id":1"#), "EOF"),
        (r#"{"images":{}}"#.into(), "expected a list"),
        (r#"{"images":[{"id":1,"file_name":"a"},{"id":1,"file_name":"b"}]}"#.into(), "image id 1 is given to a and to b"),
        (r#"{"images":[{"id":1}]}"#.into(), "image 1 without `file_name`"),
        (r#"{"images":[],"images":[]}"#.into(), "`images` stands here twice"),
        (r#"{"categories":[{"id":1,"name":"a"},{"id":1,"name":"b"}]}"#.into(), "category id 1 is given twice"),
        (format!("{{\"annotations\":[{{\"segmentation\":{}", "[".repeat(100_000)), "line 1"),
    ] {
        let error = read(&text).unwrap_err();
        assert!(error.contains(part), "{part}: {error}");
    }
    // Nested values that nobody reads cost no stack.
    let deep = format!("{{\"info\":{}{},{HEAD},\"annotations\":[]}}", "[".repeat(1 << 20), "]".repeat(1 << 20));
    assert!(read(&deep).unwrap().boxes.is_empty(), "a file without boxes is a file");
}

#[test]
fn what_is_known_of_a_frame_is_kept() {
    let text = r#"{"images":[{"id":20200514230715001,"file_name":"a","date_captured":"2020-05-14T23:07:15","meta":{"Temperature":9.5,"Wind":[1],"n":3,"site":" quay "}},
        {"id":2,"file_name":"b","meta":null,"date_captured":null},{"id":3,"file_name":"c","meta":{"Temperature":9.5,"deep":{"a":[{}]},"on":true,"":null}}]}"#;
    let file = read(text).unwrap();
    let mut meta = crate::data::meta::FrameMeta::new(vec![file.meta.clone()]);
    (0..3).for_each(|i| meta.push(i, Some((0, i as u32))));
    assert_eq!(meta.keys(), ["date_captured", "Temperature", "n", "site", "on"]);
    let row = |i| ["date_captured", "Temperature", "n", "site", "on"].map(|key| meta.get(i, key));
    assert_eq!(row(0), [Some("2020-05-14T23:07:15"), Some("9.5"), Some("3"), Some("quay"), None]);
    assert_eq!((row(1), row(2)), ([None; 5], [None, Some("9.5"), None, None, Some("true")]));
    assert!(file.categories.is_empty() && file.boxes.is_empty(), "images without labels are a file");
}

#[test]
fn an_id_of_two_annotations_is_counted_and_an_unused_background_is_no_class() {
    let box_ = |id: i64, category: u8| format!(r#"{{"id":{id},"image_id":1,"category_id":{category},"bbox":[1,1,1,1]}}"#);
    let read = |boxes: &[String]| {
        let categories = r#"[{"id":0,"name":"Background"},{"id":1,"name":"person"}]"#;
        read(&format!(r#"{{"images":[{{"id":1,"file_name":"a"}}],"categories":{categories},"annotations":[{}]}}"#, boxes.join(",")))
            .unwrap()
    };
    let file = read(&[box_(7, 1), box_(9, 1), box_(7, 1), box_(7, 1)]);
    assert_eq!((file.counts.repeated_annotations, file.boxes.len(), file.names()), (2, 4, vec!["person".to_string()]));
    assert_eq!(file.counts.examples, ["annotation id 7 is given to 3 annotations"]);
    let many: Vec<String> = (0..40).map(|i| box_(i / 2, 1)).collect();
    let file_of_many = read(&many);
    assert_eq!((file_of_many.counts.repeated_annotations, file_of_many.counts.examples.len()), (20, 10), "the first few are named");
    let text = |id: &str| format!(r#"{{"id":"{id}","image_id":1,"category_id":1,"bbox":[1,1,1,1]}}"#);
    let counts = read(&[text("a"), text("b"), text("a"), text("7"), box_(7, 1)]).counts;
    assert_eq!(counts.repeated_annotations, 2, "texts too, and a number is its text");
    assert_eq!(counts.examples, ["annotation a of image 1 has the id of another before it", "annotation id 7 is given to 2 annotations"]);
    assert_eq!(read(&[box_(1, 0)]).names(), ["Background", "person"]);
}

#[test]
fn areas_go_with_their_boxes_to_the_images_that_have_them() {
    let note = |image: u32, category: u32, more: &str| format!(r#"{{"image_id":{image},"category_id":{category},{more}}}"#);
    let notes = [
        note(2, 1, r#""bbox":[0,0,20,10],"area":150"#),
        note(1, 1, r#""bbox":[0,0,20,10],"area":200"#),
        note(9, 1, r#""bbox":[0,0,20,10],"area":50"#),
        note(1, 7, r#""bbox":[0,0,20,10],"area":60"#),
        note(2, 1, r#""bbox":[1,0,20,10],"area":"70.5""#),
        note(1, 1, r#""bbox":[1,0,20,0],"area":80"#),
        note(1, 1, r#""bbox":[1,0,20,10],"area":90"#),
        note(2, 1, r#""bbox":[2,0,20,10],"area":null"#),
        note(2, 1, r#""bbox":[3,0,20,10],"area":[1]"#),
        note(2, 1, r#""bbox":[4,0,20,10],"area":true"#),
        note(2, 1, r#""bbox":[5,0,20,10],"area":"n/a""#),
        note(2, 1, r#""bbox":[6,0,20,10],"area":{"px":1}"#),
    ];
    let head = r#""images":[{"id":1,"file_name":"a"},{"id":2,"file_name":"b"}],"categories":[{"id":1,"name":"c"}]"#;
    let annotations = notes.join(",");
    for text in [format!(r#"{{{head},"annotations":[{annotations}]}}"#), format!(r#"{{"annotations":[{annotations}],{head}}}"#)] {
        let file = read(&text).unwrap();
        let areas = |image: usize| (0..file.boxes_of(image).len()).map(|k| file.areas.get(image, k)).collect::<Vec<_>>();
        assert_eq!([areas(0), areas(1)], [vec![None, Some(90.0)], vec![Some(150.0), Some(70.5), None, None, None, None, None]]);
    }
}

#[test]
fn what_python_writes_for_no_number_is_unknown_wherever_reads_end() {
    let text = r#"{"info":{"version":NaN},"images":[{"id":1,"file_name":"NaN \"Infinity.jpg","width":NaN,"height":Infinity,"date_captured":NaN,
        "meta":{"Temperature":NaN,"Humidity":-Infinity,"n":3,"NaN":"NaN"}},{"id":2,"file_name":"b","meta":NaN}],"categories":[{"id":1,"name":"a"}],
        "annotations":[{"id":NaN,"image_id":1,"category_id":1,"bbox":[1,2,3,4],"area":NaN,"iscrowd":NaN},
        {"id":NaN,"image_id":1,"category_id":1,"bbox":[-1,2,3,4],"segmentation":[[1,2,NaN,4,5,6],[1,1,2,2,1,2]]}]}"#;
    for cut in 0..text.len() {
        let (first, second) = text.as_bytes().split_at(cut);
        let file = parse(first.chain(second)).unwrap();
        assert_eq!((file.counts.not_numbers, file.counts.repeated_annotations, file.boxes.len()), (12, 0, 2), "{cut}");
        assert_eq!((file.images[0].file.as_str(), file.images[0].size), ("NaN \"Infinity.jpg", Size { width: 0, height: 0 }));
        assert_eq!((file.boxes[1].xywh[0], file.outline(&file.boxes[1])), (-1.0, &[[1.0, 1.0], [2.0, 2.0], [1.0, 2.0]][..]));
        let of_first = ["date_captured", "Temperature", "Humidity", "n", "NaN"].map(|key| file.meta.get(0, key));
        assert_eq!(of_first, [None, None, None, Some("3"), Some("NaN")]);
    }
    // Where something has to stand it is refused as that.
    let with = |annotation: &str| read(&format!("{{{HEAD},\"annotations\":[{annotation}]}}")).unwrap_err();
    for word in ["NaN", "Infinity", "-Infinity"] {
        let error = with(&format!(r#"{{"image_id":1,"category_id":3,"bbox":[1,{word},1,1]}}"#));
        assert!(error.contains("element 0: a box needs four numbers at line 2"), "{error}");
    }
    assert!(with(r#"{"image_id":1,"category_id":3,"bbox":NaN}"#).contains("element 0: a box needs four numbers at line 2"));
    assert!(with(r#"{"id":4,"image_id":NaN}"#).contains("annotation 4 has no `image_id`"));
    assert!(with(r#"{"id":4,"image_id":1,"category_id":3,"bbox":[1,Nan,1,1]}"#).contains("expected value"));
    for (text, part) in [
        (r#"{"images":NaN}"#, "invalid type: NaN, Infinity or an empty text, expected a list at line 1"),
        (r#"{"images":[NaN]}"#, "element 0: invalid type: NaN, Infinity or an empty text, expected an object at line 1"),
        (r#"{"images":["a"]}"#, "element 0: invalid type: string \"a\", expected an object at line 1"),
        ("NaN", "invalid type: NaN, Infinity or an empty text, expected a COCO object"),
        (r#"{"images":[{"id":NaN,"file_name":"a"}]}"#, "an image without `id`"),
        (r#"{"images":[{"id":1,"file_name":NaN}]}"#, "image 1: its file name is empty"),
        (r#"{"categories":[{"id":NaN,"name":"a"}]}"#, "a category without `id`"),
        (r#"{"categories":[{"id":1,"name":NaN}]}"#, "element 0: category 1 without `name` at line 1"),
        (r#"{"categories":[{"id":1,"name":""}]}"#, "element 0: category 1 without `name` at line 1"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn a_polygon_with_a_point_that_nobody_knows_is_left_out_and_counted() {
    let file = |more: &str| {
        let note = format!(r#"{{"id":5,"image_id":1,"category_id":1,{more}}}"#);
        read(&format!(r#"{{"images":[{{"id":1,"file_name":"a"}}],"categories":[{{"id":1,"name":"c"}}],"annotations":[{note}]}}"#)).unwrap()
    };
    for unknown in ["null", "NaN", "-Infinity", "\"\"", "1e60"] {
        let one = file(&format!(r#""bbox":[1,2,3,4],"segmentation":[[1,1,2,2,1,2],[1,2,{unknown},4,5,6],[3,3,4,4,3,4]]"#));
        assert_eq!((one.counts.unknown_points, one.outline(&one.boxes[0]).len()), (1, 7), "{unknown}: two rings and a break");
        assert_eq!(one.counts.examples, ["annotation 5 of image 1 has a polygon with an unknown point"]);
    }
    let boxless = file(r#""segmentation":[[1,2,null,4,5,6]]"#).counts;
    assert_eq!((boxless.unknown_points, boxless.boxless), (1, 1));
    // What is no polygon is nothing, beside one that is; and less than a triangle is none, of known points.
    for nothing in ["NaN", "null", "\"\"", "[]", "[1,2]"] {
        let whole = file(&format!(r#""bbox":[1,2,3,4],"segmentation":[{nothing}]"#));
        assert_eq!((whole.counts.unknown_points, whole.boxes.len(), whole.points.len()), (0, 1, 0), "{nothing}");
        let beside = file(&format!(r#""bbox":[1,2,3,4],"segmentation":[{nothing},[1,1,2,2,1,2]]"#));
        assert_eq!((beside.counts.unknown_points, beside.points.len()), (0, 3), "{nothing}");
    }
}

#[test]
fn tables_that_became_json_are_read_and_nonsense_in_them_is_refused() {
    let file = |image: &str, annotation: &str| {
        let bbox = if annotation.contains("bbox") { "" } else { ",\"bbox\":[1,2,3,4]" };
        let note = format!(r#"{{"image_id":1,"category_id":1{bbox}{annotation}}}"#);
        read(&format!(r#"{{"images":[{{"id":1,"file_name":"a"{image}}}],"categories":[{{"id":1,"name":"c"}}],"annotations":[{note}]}}"#))
    };
    for meta in ["5", "-5", "0.5", "true", "\"x\"", "[1]", "null"] {
        assert_eq!(file(&format!(",\"meta\":{meta}"), "").unwrap().boxes.len(), 1, "{meta}");
    }
    for (text, width) in [("\"96\"", 96), ("\" 96.0 \"", 96), ("96", 96), ("\"\"", 0), ("\"nan\"", 0), ("null", 0)] {
        assert_eq!(file(&format!(",\"width\":{text}"), "").unwrap().images[0].size.width, width, "{text}");
    }
    for (bbox, xywh) in [(r#"["1"," 2.5 ","3e0",4]"#, [1.0, 2.5, 3.0, 4.0]), (r#"["-1",2,3,"4"]"#, [-1.0, 2.0, 3.0, 4.0])] {
        assert_eq!(file("", &format!(",\"bbox\":{bbox}")).map(|file| file.boxes[0].xywh), Ok(xywh), "{bbox}");
    }
    for bbox in [r#"[1,2,"",4]"#, "[1,2,null,4]", "[1,2,NaN,4]", r#"[1,2,"inf",4]"#, "NaN", r#""1,2,3,4""#] {
        let error = file("", &format!(",\"bbox\":{bbox}")).unwrap_err();
        assert!(error.contains("element 0: a box needs four numbers at line 1 column "), "{bbox}: {error}");
    }
    for (text, boxes) in [("\"0\"", 1), ("\"1\"", 0), ("\"False\"", 1), ("\"true\"", 0), ("\"\"", 1), ("1", 0), ("false", 1)] {
        assert_eq!(file("", &format!(",\"iscrowd\":{text}")).unwrap().boxes.len(), boxes, "{text}");
    }
    for (image, annotation) in
        [(",\"width\":\"wide\"", ""), (",\"width\":[96]", ""), (",\"width\":true", ""), ("", ",\"iscrowd\":\"maybe\"")]
    {
        let error = file(image, annotation).unwrap_err();
        assert!(error.contains("element 0: invalid") && error.contains("at line 1 column "), "{error}");
    }
}
