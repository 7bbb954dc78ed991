//! What a validation says about a detector: suppression, matching, average precision, confusion. Pure functions on host memory.
//!
//! Detections and ground truths of one image must be in the same pixel frame. Nothing here reads files, chooses devices, or returns
//! NaN: a class without ground truth is left out of every mean, and a mean over no class is 0.
//!
//! # Two definitions of average precision
//!
//! [`Evaluator`] follows the definition YOLO users know, so that their numbers stay comparable. [`CocoEvaluator`] follows pycocotools,
//! the definition of papers and leaderboards. On the same detections they differ in four places:
//!
//! | | [`Evaluator`] | [`CocoEvaluator`] |
//! |---|---|---|
//! | curve | joined by straight lines from (0, 1) to (1, 0), trapezoid rule over 101 recalls | steps: precision at the first recall ≥ r, mean over 101 recalls |
//! | best value | 0.995, for the sentinel puts precision 0 at recall 1 | 1.0 |
//! | matching | a detection may claim only the truth it overlaps most | falls back to the next free truth above the threshold |
//! | cut | all detections that NMS kept (300 an image) | the best 100 of each class of each image |
//!
//! Both sort by confidence, take the running maximum of precision from the right, and use IoU .50, .55 … .95. The straight lines
//! usually read higher, for they cut across every drop that the steps follow: on the 200 sets of `tests/metrics_golden.rs`, with few
//! objects each, by .036 mAP50-95 on average, at most .114 higher and .005 lower. With thousands of objects the gap nearly closes.
//!
//! Where they agree: if no two truths of a class overlap, a detection has at most one candidate at IoU ≥ .5 and both matchings are the
//! same; the curves are then the same points, read in two ways. The same test compares each half with the tool that defines it, to 1e-6.

mod ap;
mod bootstrap;
mod coco;
mod confusion;
mod evaluator;
mod grouped;
mod matching;
mod nms;
mod table;

pub(crate) use ap::box_filter;
pub use ap::{average_precision, coco_average_precision};
pub use bootstrap::Interval;
pub(crate) use coco::EDGES;
pub use coco::{CocoEvaluator, CocoMetrics};
pub use confusion::ConfusionMatrix;
pub use evaluator::{ClassMetrics, Curves, DetectionMetrics, Evaluator, Speed};
pub use grouped::{GroupMetrics, Grouped, Stability, group_metrics};
pub use matching::{IOU_THRESHOLDS, iou, iou_matrix, match_detections, overlap_of_smaller};
pub use nms::{NmsConfig, nms};
pub use table::{table_header, table_row};
