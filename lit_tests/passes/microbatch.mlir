// RUN: pcp-opt %s --pcp-accumulate | filecheck %s
// RUN: pcp-opt %s --pcp-accumulate --pcp-accumulate | filecheck %s
// RUN: pcp-opt %s --pcp-accumulate=expand=false | filecheck %s --check-prefix=KEPT

// One loop over two pieces; what the region uses from outside stays outside. The sum
// of bf16 is kept in f32, that of integers in their own type; the mean is halved.
// CHECK-LABEL: func.func @pieces(
// CHECK-NOT: pcp.microbatch
// CHECK: %[[LOOP:.+]]:3 = stablehlo.while({{.*}}) : tensor<i32>, tensor<2xf32>, tensor<2xi32>
// CHECK: stablehlo.constant dense<2> : tensor<i32>
// CHECK-DAG: stablehlo.dynamic_slice %arg1, {{.*}}, sizes = [2] : (tensor<4xbf16>, tensor<i32>) -> tensor<2xbf16>
// CHECK-DAG: stablehlo.dynamic_slice %arg2, {{.*}}, sizes = [2] : (tensor<4xi32>, tensor<i32>) -> tensor<2xi32>
// CHECK: stablehlo.multiply %{{.+}}, %arg0 : tensor<2xbf16>
// CHECK: stablehlo.convert %{{.+}} : (tensor<2xbf16>) -> tensor<2xf32>
// CHECK: dense<5.000000e-01> : tensor<2xf32>
// CHECK: %[[MEAN:.+]] = stablehlo.convert %{{.+}} : (tensor<2xf32>) -> tensor<2xbf16>
// CHECK: return %[[MEAN]], %[[LOOP]]#2
// CHECK-NOT: unrealized_conversion_cast
// KEPT: pcp.microbatch
func.func @pieces(%w: tensor<2xbf16>, %x: tensor<4xbf16>, %n: tensor<4xi32>) -> (tensor<2xbf16>, tensor<2xi32>) {
  %t = builtin.unrealized_conversion_cast %x, %n : tensor<4xbf16>, tensor<4xi32> to tuple<tensor<4xbf16>, tensor<4xi32>>
  %0 = "pcp.microbatch"(%t) ({
  ^bb0(%a: tensor<2xbf16>, %b: tensor<2xi32>):
    %y = stablehlo.multiply %a, %w : tensor<2xbf16>
    %r = builtin.unrealized_conversion_cast %y, %b : tensor<2xbf16>, tensor<2xi32> to tuple<tensor<2xbf16>, tensor<2xi32>>
    "pcp.yield"(%r) : (tuple<tensor<2xbf16>, tensor<2xi32>>) -> ()
  }) {count = 2, reduce = ["mean", "sum"]} : (tuple<tensor<4xbf16>, tensor<4xi32>>) -> tuple<tensor<2xbf16>, tensor<2xi32>>
  %1:2 = builtin.unrealized_conversion_cast %0 : tuple<tensor<2xbf16>, tensor<2xi32>> to tensor<2xbf16>, tensor<2xi32>
  return %1#0, %1#1 : tensor<2xbf16>, tensor<2xi32>
}
