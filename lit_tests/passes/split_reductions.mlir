// RUN: pcp-opt %s --pcp-split-reductions | filecheck %s
// RUN: pcp-opt %s --pcp-split-reductions=chunk=4,longest=8 | filecheck %s --check-prefix=SMALL

// One dim is cut into two; a chunk is its inner part and the dims behind it.
// CHECK-LABEL: @squares
// CHECK: %[[A:.*]] = stablehlo.reshape %arg0 : (tensor<4096x128xf32>) -> tensor<1024x4x128xf32>
// CHECK: %[[B:.*]] = stablehlo.reduce(%[[A]] {{.*}} across dimensions = [1, 2]
// CHECK: stablehlo.reduce(%[[B]] {{.*}} across dimensions = [0] : (tensor<1024xf32>,
func.func @squares(%x: tensor<4096x128xf32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<4096x128xf32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// Columns; the dim between stays.
// CHECK-LABEL: @columns
// CHECK: %[[B:.*]] = stablehlo.reduce({{.*}} across dimensions = [1, 3]
// CHECK: stablehlo.reduce(%[[B]] {{.*}} across dimensions = [0] : (tensor<512x3xf32>,
func.func @columns(%x: tensor<512x3x512xf32>) -> tensor<3xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0, 2] : (tensor<512x3x512xf32>, tensor<f32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// Nothing divides 20011: 39 chunks, and what is left.
// CHECK-LABEL: @prime
// CHECK: %[[W:.*]] = stablehlo.slice %arg0 [0:19968]
// CHECK: stablehlo.slice %arg0 [19968:20011]
// CHECK: stablehlo.reshape %[[W]] : (tensor<19968xf32>) -> tensor<39x512xf32>
// CHECK: stablehlo.add
func.func @prime(%x: tensor<20011xf32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<20011xf32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// CHECK-LABEL: @what_stays
// CHECK-NOT: stablehlo.reshape
// CHECK: return
func.func @what_stays(%x: tensor<16384xf32>, %n: tensor<99999xi32>, %y: tensor<20000xf32>) -> (tensor<f32>, tensor<i32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %none = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<16384xf32>, tensor<f32>) -> tensor<f32>
  %1 = stablehlo.reduce(%n init: %none) applies stablehlo.add across dimensions = [0] : (tensor<99999xi32>, tensor<i32>) -> tensor<i32>
  %3 = stablehlo.reduce(%y init: %zero) applies stablehlo.maximum across dimensions = [0] : (tensor<20000xf32>, tensor<f32>) -> tensor<f32>
  return %0, %1, %3 : tensor<f32>, tensor<i32>, tensor<f32>
}

// Chunks of four, and one more.
// SMALL-LABEL: @short
// SMALL: stablehlo.slice %arg0 [0:12]
// SMALL: return
func.func @short(%x: tensor<13xf32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<13xf32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// A product's chunks are a batch.
// CHECK-LABEL: @product
// CHECK: %[[A:.*]] = stablehlo.reshape %arg0 : (tensor<4x65536xf32>) -> tensor<4x128x512xf32>
// CHECK: %[[B:.*]] = stablehlo.reshape %arg1 : (tensor<65536x4xf32>) -> tensor<128x512x4xf32>
// CHECK: stablehlo.dot_general %[[A]], %[[B]], batching_dims = [1] x [0], contracting_dims = [2] x [1]
// CHECK: stablehlo.reduce({{.*}} across dimensions = [0] : (tensor<128x4x4xf32>,
func.func @product(%x: tensor<4x65536xf32>, %y: tensor<65536x4xf32>) -> tensor<4x4xf32> {
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<4x65536xf32>, tensor<65536x4xf32>) -> tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}

// Running sums of chunks, and of these.
// CHECK-LABEL: @running
// CHECK: "stablehlo.reduce_window"({{.*}}window_dimensions = array<i64: 1, 512>
// CHECK: "stablehlo.reduce_window"({{.*}}window_dimensions = array<i64: 128>
// CHECK: stablehlo.add
func.func @running(%x: tensor<65536xf32>) -> tensor<65536xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = "stablehlo.reduce_window"(%x, %zero) <{padding = dense<[[65535, 0]]> : tensor<1x2xi64>, window_dimensions = array<i64: 65536>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<65536xf32>, tensor<f32>) -> tensor<65536xf32>
  return %0 : tensor<65536xf32>
}

// The gradient of a kernel: a product for each of its two places.
// CHECK-LABEL: @kernel
// CHECK-NOT: stablehlo.convolution
// CHECK-COUNT-2: stablehlo.dot_general
// CHECK: stablehlo.concatenate
func.func @kernel(%x: tensor<2x301x4xf32>, %g: tensor<2x300x8xf32>) -> tensor<2x4x8xf32> {
  %0 = stablehlo.convolution(%x, %g) dim_numbers = [f, 0, b]x[i, 0, o]->[0, b, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x301x4xf32>, tensor<2x300x8xf32>) -> tensor<2x4x8xf32>
  return %0 : tensor<2x4x8xf32>
}
