// RUN: pcp-opt %s --pcp-freeze="names=m.embed*|m.norm" | filecheck %s
// RUN: not pcp-opt %s --pcp-freeze="names=q.*" 2>&1 | filecheck %s --check-prefix=NONE
// RUN: not pcp-opt %s --pcp-freeze="names=*" 2>&1 | filecheck %s --check-prefix=ALL
// RUN: not pcp-opt %s --pcp-freeze="names=q func=loss" 2>&1 | filecheck %s --check-prefix=MISSING

// CHECK: %arg0: tensor<4xf32> {pcp.name = "m.embed.w", pcp.role = "frozen"}
// CHECK-SAME: %arg1: tensor<4xf32> {pcp.name = "m.norm", pcp.role = "frozen"}
// CHECK-SAME: %arg2: tensor<4xf32> {pcp.init = "ones", pcp.name = "head", pcp.role = "param"}
// CHECK-SAME: pcp.role = "data"

// NONE: pcp-freeze: the pattern 'q.*' matches no parameter (m.embed.w, m.norm, head)
// ALL: pcp-freeze: names=* leaves no parameter to train
// MISSING: pcp-freeze: the module has no function @loss

func.func @main(
    %e: tensor<4xf32> {pcp.name = "m.embed.w", pcp.role = "param", pcp.init = "ones"},
    %n: tensor<4xf32> {pcp.name = "m.norm", pcp.role = "param"},
    %h: tensor<4xf32> {pcp.name = "head", pcp.role = "param", pcp.init = "ones"},
    %x: tensor<4xf32> {pcp.name = "m.embed", pcp.role = "data"}) -> tensor<4xf32> {
  %0 = stablehlo.add %e, %x : tensor<4xf32>
  %1 = stablehlo.multiply %0, %n : tensor<4xf32>
  %2 = stablehlo.multiply %1, %h : tensor<4xf32>
  return %2 : tensor<4xf32>
}
