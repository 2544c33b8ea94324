// RUN: pcp-opt %s --pcp-legalize | filecheck %s
// RUN: pcp-opt %s --pcp-legalize --pcp-legalize | filecheck %s

// What is added up is added up in f32, and rounded once. Operands of products stay
// narrow: matrix units take them.

// CHECK-LABEL: func.func @product(
// CHECK: %[[P:.*]] = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [HIGH, DEFAULT] : (tensor<4x8xbf16>, tensor<8x2xbf16>) -> tensor<4x2xf32>
// CHECK: %[[R:.*]] = stablehlo.convert %[[P]] : (tensor<4x2xf32>) -> tensor<4x2xbf16>
// CHECK: return %[[R]]
func.func @product(%x: tensor<4x8xbf16>, %y: tensor<8x2xbf16>) -> tensor<4x2xbf16> {
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0], precision = [HIGH, DEFAULT] : (tensor<4x8xbf16>, tensor<8x2xbf16>) -> tensor<4x2xbf16>
  return %0 : tensor<4x2xbf16>
}

// CHECK-LABEL: func.func @dot(
// CHECK: stablehlo.dot %arg0, %arg1 : (tensor<4x8xf16>, tensor<8x2xf16>) -> tensor<4x2xf32>
func.func @dot(%x: tensor<4x8xf16>, %y: tensor<8x2xf16>) -> tensor<4x2xf16> {
  %0 = stablehlo.dot %x, %y : (tensor<4x8xf16>, tensor<8x2xf16>) -> tensor<4x2xf16>
  return %0 : tensor<4x2xf16>
}

// Said to be f32 already.
// CHECK-LABEL: func.func @wide(
// CHECK-NEXT: stablehlo.dot_general {{.*}} -> tensor<4x2xf32>
// CHECK-NEXT: return
func.func @wide(%x: tensor<4x8xbf16>, %y: tensor<8x2xbf16>) -> tensor<4x2xf32> {
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<4x8xbf16>, tensor<8x2xbf16>) -> tensor<4x2xf32>
  return %0 : tensor<4x2xf32>
}

// In a body of a region too.
// CHECK-LABEL: func.func @inside(
// CHECK: "stablehlo.if"
// CHECK: stablehlo.dot_general {{.*}} -> tensor<4x4xf32>
func.func @inside(%p: tensor<i1>, %x: tensor<4x4xbf16>) -> tensor<4x4xbf16> {
  %0 = "stablehlo.if"(%p) ({
    %1 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
    stablehlo.return %1 : tensor<4x4xbf16>
  }, {
    stablehlo.return %x : tensor<4x4xbf16>
  }) : (tensor<i1>) -> tensor<4x4xbf16>
  return %0 : tensor<4x4xbf16>
}

// CHECK-LABEL: func.func @convolution(
// CHECK: stablehlo.convolution(%arg0, %arg1) {{.*}} : (tensor<1x4x4x2xbf16>, tensor<3x3x2x2xbf16>) -> tensor<1x2x2x2xf32>
func.func @convolution(%x: tensor<1x4x4x2xbf16>, %k: tensor<3x3x2x2xbf16>) -> tensor<1x2x2x2xbf16> {
  %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x4x4x2xbf16>, tensor<3x3x2x2xbf16>) -> tensor<1x2x2x2xbf16>
  return %0 : tensor<1x2x2x2xbf16>
}

// Channel by channel: all in f32, and the kernel behind a barrier.
// CHECK-LABEL: func.func @depthwise(
// CHECK: %[[K:.*]] = stablehlo.convert %arg1 : (tensor<3x3x1x2xbf16>) -> tensor<3x3x1x2xf32>
// CHECK: %[[H:.*]] = stablehlo.optimization_barrier %[[K]]
// CHECK: %[[X:.*]] = stablehlo.convert %arg0
// CHECK: stablehlo.convolution(%[[X]], %[[H]]) {{.*}} -> tensor<1x2x2x2xf32>
func.func @depthwise(%x: tensor<1x4x4x2xbf16>, %k: tensor<3x3x1x2xbf16>) -> tensor<1x2x2x2xbf16> {
  %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 2 : i64} : (tensor<1x4x4x2xbf16>, tensor<3x3x1x2xbf16>) -> tensor<1x2x2x2xbf16>
  return %0 : tensor<1x2x2x2xbf16>
}

// A model's own conversion of the kernel does not pass through either.
// CHECK-LABEL: func.func @converted_kernel(
// CHECK: stablehlo.optimization_barrier {{.*}} : tensor<3x3x1x2xf64>
// CHECK: stablehlo.convolution{{.*}} -> tensor<1x2x2x2xf64>
func.func @converted_kernel(%x: tensor<1x4x4x2xf64>, %k: tensor<3x3x2xbf16>) -> tensor<1x2x2x2xf64> {
  %0 = stablehlo.convert %k : (tensor<3x3x2xbf16>) -> tensor<3x3x2xf64>
  %1 = stablehlo.reshape %0 : (tensor<3x3x2xf64>) -> tensor<3x3x1x2xf64>
  %2 = stablehlo.convolution(%x, %1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 2 : i64} : (tensor<1x4x4x2xf64>, tensor<3x3x1x2xf64>) -> tensor<1x2x2x2xf64>
  return %2 : tensor<1x2x2x2xf64>
}

// CHECK-LABEL: func.func @sum(
// CHECK: %[[W:.*]] = stablehlo.convert %arg0 : (tensor<4x8xbf16>) -> tensor<4x8xf32>
// CHECK: %[[S:.*]] = stablehlo.reduce(%[[W]] init: %{{.*}}) applies stablehlo.add across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
// CHECK: stablehlo.convert %[[S]] : (tensor<4xf32>) -> tensor<4xbf16>
func.func @sum(%x: tensor<4x8xbf16>) -> tensor<4xbf16> {
  %zero = stablehlo.constant dense<0.0> : tensor<bf16>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x8xbf16>, tensor<bf16>) -> tensor<4xbf16>
  return %0 : tensor<4xbf16>
}

// CHECK-LABEL: func.func @window(
// CHECK: "stablehlo.reduce_window"
// CHECK: stablehlo.add {{.*}} : tensor<f32>
// CHECK: stablehlo.convert {{.*}} -> tensor<4xf16>
func.func @window(%x: tensor<8xf16>) -> tensor<4xf16> {
  %zero = stablehlo.constant dense<0.0> : tensor<f16>
  %0 = "stablehlo.reduce_window"(%x, %zero) <{window_dimensions = array<i64: 2>, window_strides = array<i64: 2>}> ({
  ^bb0(%a: tensor<f16>, %b: tensor<f16>):
    %1 = stablehlo.add %a, %b : tensor<f16>
    stablehlo.return %1 : tensor<f16>
  }) : (tensor<8xf16>, tensor<f16>) -> tensor<4xf16>
  return %0 : tensor<4xf16>
}

// An integer goes by way of f32; nothing is above its largest number.
// CHECK-LABEL: func.func @integer(
// CHECK: %[[F:.*]] = stablehlo.convert %arg0 : (tensor<4xi32>) -> tensor<4xf32>
// CHECK: %[[M:.*]] = stablehlo.minimum %[[F]], %{{.*}} : tensor<4xf32>
// CHECK: stablehlo.convert %[[M]] : (tensor<4xf32>) -> tensor<4xbf16>
func.func @integer(%x: tensor<4xi32>) -> tensor<4xbf16> {
  %0 = stablehlo.convert %x : (tensor<4xi32>) -> tensor<4xbf16>
  return %0 : tensor<4xbf16>
}
