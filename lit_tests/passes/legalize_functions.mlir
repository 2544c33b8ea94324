// RUN: pcp-opt %s --pcp-legalize --split-input-file | filecheck %s

// The sine by integers: the angle in quarter turns, the sign put on as a bit.
// CHECK-LABEL: func.func @sine
// CHECK: %[[BITS:.*]] = stablehlo.bitcast_convert %arg0 : (tensor<3xf32>) -> tensor<3xui32>
// CHECK-NOT: stablehlo.sine
// CHECK: stablehlo.xor %{{.*}} : tensor<3xui32>
// CHECK: stablehlo.bitcast_convert %{{.*}} : (tensor<3xui32>) -> tensor<3xf32>
// CHECK: %[[TINY:.*]] = stablehlo.select %{{.*}}, %arg0, %{{.*}}
// CHECK: return
func.func @sine(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = stablehlo.sine %x : tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----

// 16-bit floats by way of f32.
// CHECK-LABEL: func.func @narrow
// CHECK: stablehlo.convert %arg0 : (tensor<3xbf16>) -> tensor<3xf32>
// CHECK-NOT: stablehlo.cosine
// CHECK: stablehlo.convert %{{.*}} : (tensor<3xf32>) -> tensor<3xbf16>
// CHECK: return
func.func @narrow(%x: tensor<3xbf16>) -> tensor<3xbf16> {
  %0 = stablehlo.cosine %x : tensor<3xbf16>
  return %0 : tensor<3xbf16>
}

// -----

// A double stays: IREE has no cosine of it, and says so.
// CHECK-LABEL: func.func @double
// CHECK: stablehlo.cosine %arg0 : tensor<3xf64>
func.func @double(%x: tensor<3xf64>) -> tensor<3xf64> {
  %0 = stablehlo.cosine %x : tensor<3xf64>
  return %0 : tensor<3xf64>
}

// -----

// 2³¹ - 1 is no f32: what lies above the last one below it is put in afterwards.
// CHECK-LABEL: func.func @saturate
// CHECK: %[[IS:.*]] = stablehlo.compare EQ, %arg0, %arg0
// CHECK: %[[N:.*]] = stablehlo.select %[[IS]], %arg0
// CHECK: %[[C:.*]] = stablehlo.clamp %{{.*}}, %[[N]], %{{.*}} : tensor<3xf32>
// CHECK: %[[I:.*]] = stablehlo.convert %[[C]] : (tensor<3xf32>) -> tensor<3xi32>
// CHECK: %[[UP:.*]] = stablehlo.compare GT, %arg0
// CHECK: %[[R:.*]] = stablehlo.select %[[UP]], %{{.*}}, %[[I]]
// CHECK: return %[[R]]
func.func @saturate(%x: tensor<3xf32>) -> tensor<3xi32> {
  %0 = stablehlo.convert %x : (tensor<3xf32>) -> tensor<3xi32>
  return %0 : tensor<3xi32>
}

// -----

// What was a small integer fits.
// CHECK-LABEL: func.func @fits
// CHECK-NOT: stablehlo.clamp
// CHECK: return
func.func @fits(%x: tensor<3xi8>) -> tensor<3xi32> {
  %0 = stablehlo.convert %x : (tensor<3xi8>) -> tensor<3xf32>
  %1 = stablehlo.convert %0 : (tensor<3xf32>) -> tensor<3xi32>
  return %1 : tensor<3xi32>
}

// -----

// A short power is a product: IREE's logarithm knows no negative base.
// CHECK-LABEL: func.func @fifth
// CHECK: %[[A:.*]] = stablehlo.multiply %arg0, %arg0
// CHECK: %[[B:.*]] = stablehlo.multiply %[[A]], %[[A]]
// CHECK: %[[C:.*]] = stablehlo.multiply %[[B]], %arg0
// CHECK: return %[[C]]
func.func @fifth(%x: tensor<3xf32>) -> tensor<3xf32> {
  %y = stablehlo.constant dense<5.0> : tensor<3xf32>
  %0 = stablehlo.power %x, %y : tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----

// The larger part is taken out before anything is squared.
// CHECK-LABEL: func.func @size
// CHECK: %[[L:.*]] = stablehlo.maximum
// CHECK: %[[S:.*]] = stablehlo.minimum
// CHECK: %[[R:.*]] = stablehlo.divide %[[S]], %[[L]]
// CHECK: stablehlo.multiply %[[R]], %[[R]]
// CHECK: return
func.func @size(%z: tensor<3xcomplex<f32>>) -> tensor<3xf32> {
  %0 = stablehlo.abs %z : (tensor<3xcomplex<f32>>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----

// Whether x is whole, asked of another rounding: LLVM has a call for the first.
// CHECK-LABEL: func.func @whole
func.func @whole(%x: tensor<4xf32>) -> (tensor<4xi1>, tensor<4xi1>) {
  // CHECK: %[[Y:.*]] = stablehlo.round_nearest_even %arg0
  // CHECK: stablehlo.compare EQ, %[[Y]], %arg0
  %f = stablehlo.floor %x : tensor<4xf32>
  %e = stablehlo.compare EQ, %f, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  // CHECK: stablehlo.compare LT
  %l = stablehlo.compare LT, %f, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  return %e, %l : tensor<4xi1>, tensor<4xi1>
}
